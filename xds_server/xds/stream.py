"""One gRPC stream: the shell around a session.

A stream costs one coroutine, the reader, which also writes what it answers. A push is written by a task that
lives as long as there is something to write: a thousand idle streams hold no timers, queues or events. The
outbox cannot grow: the session gives out at most one response per type until it is ACKed.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import grpc

from xds_server.resources.snapshot import ENDPOINT, PUSH_ORDER, Snapshot
from xds_server.xds.answer import Protocol
from xds_server.xds.events import Acked, Event, Nacked
from xds_server.xds.node import BadNodeError, Proxy
from xds_server.xds.observer import Observer
from xds_server.xds.proto import BadRequestError, parse_delta, parse_sotw
from xds_server.xds.rendered import Rendered, Response
from xds_server.xds.session import Session

_CLIENT_IS_GONE = (grpc.aio.BaseError, asyncio.InvalidStateError)
_KNOWN_TYPES = frozenset(PUSH_ORDER)


class Stream:
    """A client's stream from its first request to its end."""

    __slots__ = (
        "_context", "_latest", "_loop", "_observer", "_outbox", "_parse", "_timer", "_writer",
        "_writing", "only", "opened_at", "protocol", "proxy", "session",
    )  # fmt: skip

    def __init__(
        self,
        context: Any,
        *,
        protocol: Protocol,
        only: str | None,
        rendered: Rendered,
        observer: Observer,
    ) -> None:
        """Make the stream; `only` is the type of a single-type service, None for ADS."""
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._observer = observer
        self.only = only
        self._outbox: list[Response] = []
        self._latest: Snapshot | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writer: asyncio.Task[None] | None = None
        self._writing = False
        self.opened_at = self._loop.time()
        self.protocol = protocol
        self.proxy: Proxy | None = None
        sotw = protocol is Protocol.SOTW
        self._parse: Callable[[bytes], Any] = parse_sotw if sotw else parse_delta
        self.session = Session(protocol, rendered, self._tell)

    @property
    def keeps_limits(self) -> bool:
        """Whether its proxy may have listeners of ours; a sidecar of a mesh that takes endpoints alone has none."""
        return self.only != ENDPOINT

    async def serve(self, joined: Callable[[Stream], Snapshot | None]) -> None:
        """Answer requests until the client ends the stream.

        Args:
            joined: Called once, when the proxy is known; returns the snapshot of its group, if any.
        """
        read = self._context.read
        while (raw := await read()) is not grpc.aio.EOF:
            try:
                request = self._parse(raw)
                if self.proxy is None:
                    self._meet(request.proxy, joined)
                self._take(request)
                if self._outbox and not self._writing:
                    self._writing = True
                    await self._write()
            except (BadNodeError, BadRequestError) as error:
                self._observer.ignored(proxy=self.proxy, type_url="", reason="bad_request")
                self._observer.refused(
                    proxy=self.proxy, peer=self._context.peer(), reason=str(error)
                )
                await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def _meet(self, proxy: Proxy | None, joined: Callable[[Stream], Snapshot | None]) -> None:
        if proxy is None:
            raise BadNodeError("node is missing: expected a node with an id in the first request")
        self.proxy = proxy
        self._latest = joined(self)

    def _take(self, request: Any) -> None:
        type_url: str = request.type_url
        if type_url != self.only and self.only is not None:
            if type_url:
                raise BadRequestError(
                    f"type_url {type_url!a} on the stream of a single type: expected {self.only}"
                )
            request = dataclasses.replace(request, type_url=self.only)
        elif not type_url:
            raise BadRequestError(
                "type_url is missing: expected the type of the resources on an ADS stream"
            )
        elif type_url not in _KNOWN_TYPES:
            self._observer.ignored(proxy=self.proxy, type_url=type_url, reason="unknown_type")
            return
        assert self.proxy is not None
        self._observer.request(proxy=self.proxy, type_url=request.type_url)
        self._refresh()
        self._outbox += self.session.on_request(request, self._loop.time())
        self._set_timer()

    def push(self, snapshot: Snapshot) -> None:
        """Bring the client to a snapshot, soon.

        What it needs is found out by its writer: the bytes of the first client are on their way before
        the last one is looked at.
        """
        self._latest = snapshot
        self._start_writer()

    @property
    def is_behind(self) -> bool:
        """Whether there is a snapshot that was not looked at yet."""
        return self._latest is not None

    def has_accepted(self, type_url: str) -> bool:
        """Whether the client runs on what it is served of a type; what it never asked for it does not run on."""
        channel = self.session.channels.get(type_url)
        if self.is_behind:
            return False
        return channel is None or not (channel.pending or channel.due or channel.refusal)

    def _refresh(self) -> None:
        """Take the latest snapshot, if there is one that the session does not know."""
        snapshot, self._latest = self._latest, None
        if snapshot is not None:
            self._outbox += self.session.on_snapshot(snapshot, self._loop.time())
            self._set_timer()

    def close(self) -> None:
        """Give up whatever still waits."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writer is not None:
            self._writer.cancel()

    def _start_writer(self) -> None:
        if not self._writing:
            self._writing = True
            self._writer = self._loop.create_task(self._write())

    async def _write(self) -> None:
        write, outbox = self._context.write, self._outbox
        assert self.proxy is not None
        try:
            self._refresh()
            while outbox:
                response = outbox.pop(0)
                await write(response.body)
                self._observer.response_sent(
                    proxy=self.proxy, type_url=response.type_url, size_bytes=len(response.body)
                )
                self._refresh()
        except _CLIENT_IS_GONE:
            self._outbox.clear()  # The reader is told by gRPC.
        except Exception as error:  # noqa: BLE001  (whatever it is, the stream cannot go on)
            await self._fail(error)
        finally:
            self._writing = False
            self._writer = None

    async def _fail(self, error: Exception) -> None:
        """End the stream: what was not written is never ACKed, and would be waited for for ever."""
        self._outbox.clear()
        self._loop.call_exception_handler(
            {"message": f"xDS stream of {self.proxy} failed", "exception": error}
        )
        with contextlib.suppress(*_CLIENT_IS_GONE):
            await self._context.abort(grpc.StatusCode.INTERNAL, "the push failed; see the log")

    def _set_timer(self) -> None:
        deadline, timer = self.session.deadline, self._timer
        if deadline is None and timer is None:
            return
        if timer is not None and timer.when() != deadline:
            timer.cancel()
            timer = self._timer = None
        if deadline is not None and timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._outbox += self.session.on_time(self._loop.time())
        self._set_timer()
        if self._outbox:
            self._start_writer()

    def _tell(self, event: Event) -> None:
        assert self.proxy is not None
        if isinstance(event, Acked):
            self._observer.acked(
                proxy=self.proxy,
                type_url=event.type_url,
                version=event.version,
                lag_s=event.lag_s,
            )
        elif isinstance(event, Nacked):
            self._observer.nacked(
                proxy=self.proxy,
                type_url=event.type_url,
                version=event.version,
                error=event.error,
                names=event.names,
            )
        else:
            self._observer.ignored(proxy=self.proxy, type_url=event.type_url, reason=event.reason)

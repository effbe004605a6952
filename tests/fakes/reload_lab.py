"""A real server and a real Envoy whose file is changed while clients keep their connections open.

async with reload_lab(tmp_path, document) as lab:
    async with lab.client() as client:
        await client.ask()
        await lab.reload(changed)
        answer = await client.ask()          # on the same connection
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, DataReceived, Event, ResponseReceived, StreamEnded
from h2.exceptions import ProtocolError

from tests.fakes.chain import CHAT, Answer, ask
from tests.fakes.envoy import RealEnvoy, running_envoy
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import XdsProcess, running_server
from xds_server.resources.bootstrap import bootstrap


class ReloadLab:
    """The parts, and short ways to use them."""

    def __init__(self, path: Path, server: XdsProcess, envoy: RealEnvoy, port: int) -> None:
        self.path = path
        self.server = server
        self.envoy = envoy
        self.port = port
        self.base = f"http://127.0.0.1:{port}"

    async def reload(self, document: Mapping[str, Any]) -> None:
        """Change the file; return when the proxy has accepted everything of it."""
        before = len(self.server.named("config_reloaded"))
        text = yaml.safe_dump(dict(document))
        if text == self.path.read_text():
            return
        self.path.write_text(text)
        self.server.hang_up()  # or notices of the file system decide how long it takes

        async def accepted() -> bool:
            if len(self.server.named("config_reloaded")) == before:
                return False
            (proxy,) = await self.server.get_json("/debug/syncz")
            settled = {"synced", "not_sent"}  # the latter: filters that are wanted no more
            return all(each["state"] in settled for each in proxy["types"])

        await self.envoy.until(accepted, what="the new file at the proxy", timeout_s=45)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[KeptConnection]:
        """Return a client that sends its requests over one HTTP/1.1 connection for as long as that is open."""
        connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=60)
        async with aiohttp.ClientSession(connector=connector) as session:
            yield KeptConnection(session, self.base)

    @asynccontextmanager
    async def http2_client(self) -> AsyncIterator[Http2Client]:
        """Return a client that sends its requests over one HTTP/2 connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        client = Http2Client(reader, writer)
        try:
            yield client
        finally:
            await client.close()


class KeptConnection:
    """A client of one connection."""

    def __init__(self, session: aiohttp.ClientSession, base: str) -> None:
        self._session = session
        self._base = base

    async def ask(self, **question: Any) -> Answer:
        """Send one request and read its answer to the end."""
        return await ask(self._session, self._base, **question)


class Http2Client:
    """The least that one request after the other needs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._http.initiate_connection()
        self._answers: dict[int, tuple[dict[str, str], bytearray]] = {}
        self._ended: set[int] = set()
        self._heard = asyncio.Condition()
        self._listener = asyncio.create_task(self._listen(), name="http2")
        self._last = 2**31
        self.is_told_to_leave = False
        """The proxy wants no more requests on this connection."""

    async def ask(self, *, body: bytes = b'{"model":"chat"}', path: str = CHAT) -> Answer:
        """Send one request and read its answer to the end.

        Raises:
            ConnectionAbortedError: The proxy closes the connection, and the request may be sent on another.
        """
        stream = self._http.get_next_available_stream_id()
        head = {":method": "POST", ":path": path, ":scheme": "http", ":authority": "test"}
        self._http.send_headers(stream, [*head.items(), ("content-type", "application/json")])
        self._answers[stream] = ({}, bytearray())
        async with asyncio.timeout(PATIENCE_S), self._heard:
            while body and stream not in self._ended:
                window = self._http.local_flow_control_window(stream)
                room = min(window, self._http.max_outbound_frame_size)
                if room == 0:
                    await self._heard.wait()
                    continue
                self._http.send_data(stream, body[:room])
                body = body[room:]
                self._writer.write(self._http.data_to_send())
            if not body:
                self._http.end_stream(stream)
            self._writer.write(self._http.data_to_send())
            await self._heard.wait_for(lambda: self._is_over(stream))
        if stream not in self._ended:
            raise ConnectionAbortedError
        headers, text = self._answers.pop(stream)
        return Answer(int(headers[":status"]), text.decode(), headers)

    async def close(self) -> None:
        """End the connection."""
        self._listener.cancel()
        await asyncio.gather(self._listener, return_exceptions=True)
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)

    async def _listen(self) -> None:
        while data := await self._reader.read(2**18):
            async with self._heard:
                try:
                    events = self._http.receive_data(data)
                except ProtocolError:  # the library reads nothing that comes after a GOAWAY
                    break
                for event in events:
                    self._take(event)
                self._writer.write(self._http.data_to_send())
                self._heard.notify_all()
        async with self._heard:
            self.is_told_to_leave, self._last = True, 0
            self._heard.notify_all()

    def _is_over(self, stream: int) -> bool:
        return stream in self._ended or stream > self._last

    def _take(self, event: Event) -> None:
        if isinstance(event, ResponseReceived):
            headers = {str(name): str(value) for name, value in event.headers}
            self._answers[event.stream_id][0].update(headers)
        elif isinstance(event, DataReceived):
            self._answers[event.stream_id][1].extend(event.data)
            self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, ConnectionTerminated):
            self.is_told_to_leave = True
            self._last = event.last_stream_id or 0
        elif isinstance(event, StreamEnded):
            self._ended.add(event.stream_id)


@asynccontextmanager
async def reload_lab(
    directory: Path, document: Mapping[str, Any], *, delta: bool = False
) -> AsyncIterator[ReloadLab]:
    """Serve a file to one Envoy for as long as the block lasts."""
    path = directory / "fleet.yaml"
    path.write_text(yaml.safe_dump(dict(document)))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            running_server(path, directory / "state", ["--grace-s", "0"])
        )
        told = bootstrap(
            node_id="edge",
            cluster="test",
            xds_host="127.0.0.1",
            xds_port=server.xds_port,
            delta=delta,
        )
        envoy = await stack.enter_async_context(running_envoy(told, directory / "envoy"))
        yield ReloadLab(path, server, envoy, await envoy.listener_port("llm"))
        assert await envoy.rejected() == {}

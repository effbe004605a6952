"""The stream to istiod's xDS port: asks for route configurations and accepts what comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from xds_server.config.istio_schema import ProbeSection
from xds_server.istio.probe.proto import METHOD, BadMessageError, ask, node, parse
from xds_server.istio.probe.seen import Seen

KEEPALIVE_S = 30
"""istiod cuts clients that ping more often than every 15 s."""
MAX_MESSAGE_BYTES = 64 * 2**20
"""All HTTP routes of a port come in one response: megabytes in a large mesh without a `Sidecar` resource."""
FIRST_S = 30.0
"""How long the first response may take."""
END_S = 1.0
"""How long the status of a stream that failed is waited for."""
BROKEN = "Internal error from Core"
"""What gRPC says at our end where a message met a stream that was ended already."""
POD = "gpu-xds-probe"

Configs = Mapping[str, Mapping[str, Seen]]
"""Routes by domain, by route configuration."""


class ProbeError(Exception):
    """istiod cannot be watched; the text says why."""


def identity(section: ProbeSection, namespace: str) -> bytes:
    """Return the node of the sidecar that is played."""
    labels = {"app": POD, **section.labels}
    return node(
        node_id=f"sidecar~127.0.0.1~{POD}.{namespace}~{namespace}.svc.cluster.local",
        metadata={
            "NAMESPACE": namespace,
            "NAME": POD,
            "LABELS": labels,
            "CLUSTER_ID": section.cluster_id,
            "SERVICE_ACCOUNT": section.service_account,
        },
    )


async def watch(
    section: ProbeSection, *, who: bytes, names: Sequence[str]
) -> AsyncIterator[Configs]:
    """Yield what sidecars have of these route configurations, whenever istiod sends any.

    Args:
        section: Where istiod is, and how to get in.
        who: From `identity`.
        names: Of the route configurations.

    Raises:
        ProbeError: It cannot be reached, lets nobody in, or the stream ended.
    """
    known: dict[str, Mapping[str, Seen]] = {}
    async with _channel(section) as channel:
        call = channel.stream_stream(METHOD)(metadata=_token(section))
        try:
            await call.write(ask(names, node=who))
            while (raw := await _next(call, is_first=not known)) is not grpc.aio.EOF:
                response = parse(raw)
                if response is None:
                    continue
                await call.write(ask(names, version=response.version, nonce=response.nonce))
                known.update(response.configs)
                yield dict(known)
            raise ProbeError(await _end(call))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise ProbeError(await _end(call)) from error
        except BadMessageError as error:
            raise ProbeError(str(error)) from error
        except TimeoutError as error:
            raise ProbeError(
                f"istiod took the stream and said nothing for {FIRST_S:g} s"
            ) from error
        finally:
            call.cancel()


async def _next(call: Any, *, is_first: bool) -> Any:
    """Read a response. The first one is due at once; later ones come with changes, however long that takes."""
    async with asyncio.timeout(FIRST_S if is_first else None):
        return await call.read()


@contextlib.asynccontextmanager
async def _channel(section: ProbeSection) -> AsyncIterator[Any]:
    options: list[tuple[str, int | str]] = [
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ]
    if section.server_name is not None:
        options.append(("grpc.ssl_target_name_override", section.server_name))
    if section.ca_file is None:
        channel = grpc.aio.insecure_channel(section.istiod, options=options)
    else:
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_read(section.ca_file),
            private_key=_read(section.key_file),
            certificate_chain=_read(section.certificate_file),
        )
        channel = grpc.aio.secure_channel(section.istiod, credentials, options=options)
    async with channel:
        yield channel


def _token(section: ProbeSection) -> tuple[tuple[str, str], ...]:
    """Return the metadata with the token, read anew for every stream: kubelet renews it."""
    token = _read(section.token_file)
    if token is None:
        return ()
    bearer = ("authorization", f"Bearer {token.decode().strip()}")
    return bearer, ("clusterid", section.cluster_id)  # Whose API server is to judge the token.


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ProbeError(f"{path}: {error.strerror}") from error


async def _end(call: Any) -> str:
    """Say how istiod ended the stream; what failed at our end by that, like an ACK, tells less."""
    try:
        async with asyncio.timeout(END_S):
            code, details = await call.code(), await call.details()
    except TimeoutError:
        return "the stream broke"
    if code is grpc.StatusCode.OK or details == BROKEN:
        return "istiod ended the stream"
    return f"{code.name}: {details}"

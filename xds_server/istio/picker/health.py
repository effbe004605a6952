"""`grpc.health.v1.Health` for gateways and probes: by the names that the endpoint picker protocol has."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from xds_server.istio.picker.framing.calls import CallError, Send
from xds_server.istio.picker.framing.frames import Status

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
_STATUS = health_pb2.HealthCheckResponse


def _answer(status: int) -> bytes:
    raw: bytes = _STATUS(status=status).SerializeToString()
    return raw


class Health:
    """How the services stand, and who wants to be told."""

    def __init__(self, services: Iterable[str]) -> None:
        self._serving = dict.fromkeys(services, False)
        self._watchers: dict[WatchCall, None] = {}

    def set(self, services: Iterable[str], *, serving: bool) -> None:
        """Change how services stand, and tell who watches them."""
        for service in services:
            if self._serving[service] != serving:
                self._serving[service] = serving
                for watcher in [each for each in self._watchers if each.service == service]:
                    watcher.send(self.answer(service))

    def knows(self, service: str) -> bool:
        """Whether there is a service of this name."""
        return service in self._serving

    def answer(self, service: str) -> bytes:
        """Return how a service stands, as a HealthCheckResponse."""
        if service not in self._serving:
            return _answer(_STATUS.SERVICE_UNKNOWN)
        return _answer(_STATUS.SERVING if self._serving[service] else _STATUS.NOT_SERVING)

    def watch(self, call: WatchCall) -> None:
        """Tell a call from now on."""
        self._watchers[call] = None

    def forget(self, call: WatchCall) -> None:
        """Tell a call no more."""
        self._watchers.pop(call, None)


def _service(raw: bytes) -> str:
    try:
        name: str = health_pb2.HealthCheckRequest.FromString(raw).service
    except DecodeError as error:
        raise CallError(Status.INVALID_ARGUMENT, f"not a HealthCheckRequest: {error}") from None
    return name


class CheckCall:
    """Asks once."""

    ends_with_client = True

    def __init__(self, health: Health) -> None:
        self._health = health

    def take(self, raw: bytes) -> list[bytes]:
        """Answer how a service stands.

        Raises:
            CallError: There is no such service.
        """
        service = _service(raw)
        if not self._health.knows(service):
            raise CallError(Status.NOT_FOUND, f"no service {service!a}")
        return [self._health.answer(service)]

    def close(self) -> None:
        """Nothing is left behind."""


class WatchCall:
    """Asks to be told of changes, until the client cancels."""

    ends_with_client = False

    def __init__(self, health: Health, send: Send) -> None:
        self._health = health
        self.send = send
        self.service: str | None = None

    def take(self, raw: bytes) -> list[bytes]:
        """Answer how the service stands now."""
        self.service = _service(raw)
        self._health.watch(self)
        return [self._health.answer(self.service)]

    def close(self) -> None:
        """Tell nothing more."""
        self._health.forget(self)

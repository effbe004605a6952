"""The standard health and reflection services of the shared gRPC server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

WHOLE_SERVER = ""
"""The service name that stands for the server, which is what probes ask for by default."""


class Health:
    """Health of the server and its services, all at once: NOT_SERVING until it is said otherwise."""

    def __init__(self, servicer: Any, services: Iterable[str]) -> None:
        self._servicer = servicer
        self._services = (WHOLE_SERVER, *services)

    async def set(self, *, serving: bool) -> None:
        """Tell all who check or watch."""
        status = health_pb2.HealthCheckResponse
        for service in self._services:
            await self._servicer.set(service, status.SERVING if serving else status.NOT_SERVING)


async def add_health_and_reflection(server: Any, services: Iterable[str]) -> Health:
    """Add both services to a server that was not started yet.

    Args:
        server: Made by `make_server`.
        services: Full names of the services that the server has.
    """
    names = tuple(services)
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    described = (*names, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(described, server)
    state = Health(servicer, names)
    await state.set(serving=False)
    return state

"""Real Envoy 1.40 on the xDS server, SotW and delta."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.envoy import RealEnvoy, eventually, running_envoy
from tests.xds.bootstrap import ads_bootstrap, per_type_bootstrap, per_type_source
from tests.xds.resources import ADS, cluster, endpoints, http_listener, route, snapshot
from tests.xds.wire import serving
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import CLUSTER, ENDPOINT, Snapshot
from xds_server.xds.cache import SnapshotCache
from xds_server.xds.server import XdsServer
from xds_server.xds.syncz import SyncState, TypeStatus

pytestmark = pytest.mark.envoy
GROUP = Capability.COMPOSITE
both = pytest.mark.parametrize("delta", [False, True], ids=["GRPC", "DELTA_GRPC"])


def world(
    *,
    timeouts: dict[str, float] | None = None,
    weights: dict[str, int] | None = None,
    routed: dict[str, int] | None = None,
    source: dict[str, Any] = ADS,
) -> Snapshot:
    """Clusters a and b unless told otherwise, endpoints of each, one listener, one route."""
    timeouts = timeouts or {"a": 1, "b": 1}
    weights = weights or {}
    return snapshot(
        clusters=[
            cluster(name, timeout_s=each, config_source=source) for name, each in timeouts.items()
        ],
        endpoints=[endpoints(name, weight=weights.get(name, 1)) for name in timeouts],
        listeners=[http_listener("main", "r", config_source=source)],
        routes=[route("r", routed or dict.fromkeys(timeouts, 1))],
    )


@asynccontextmanager
async def envoy_on(
    cache: SnapshotCache, directory: Path, *, delta: bool
) -> AsyncIterator[tuple[XdsServer, RealEnvoy]]:
    async with (
        serving(cache) as (xds, port),
        running_envoy(ads_bootstrap(port, delta=delta), directory) as envoy,
    ):
        yield xds, envoy


def status(xds: XdsServer, type_url: str) -> TypeStatus:
    return next(each for each in xds.status()[0].types if each.type_url == type_url)


async def synced(xds: XdsServer) -> bool:
    return all(each.state is SyncState.SYNCED for each in xds.status()[0].types)


async def weight(envoy: RealEnvoy, name: str) -> int:
    hosts = (await envoy.clusters())[name]
    return hosts[0]["weight"] if hosts else 0


@both
async def test_a_cluster_change_is_live_without_warming(tmp_path: Path, delta: bool) -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with envoy_on(cache, tmp_path, delta=delta) as (xds, envoy):
        await eventually(lambda: synced(xds))
        took_s = []
        for timeout in (2, 3, 4):
            started = time.monotonic()
            cache.publish(GROUP, world(timeouts={"a": timeout, "b": 1}))
            assert status(xds, CLUSTER).state is SyncState.STALE
            await eventually(lambda: synced(xds))
            took_s.append(time.monotonic() - started)
            assert await envoy.stat("cluster_manager.warming_clusters") == 0
        assert min(took_s) < 4.0, "each time as long as endpoints are waited for"
        assert await envoy.rejected() == {}


@both
async def test_clusters_are_replaced_under_a_route_without_a_hole(
    tmp_path: Path, delta: bool
) -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with envoy_on(cache, tmp_path, delta=delta) as (xds, envoy):
        await eventually(lambda: synced(xds))
        for names in ("bc", "cd", "d", "ad"):
            cache.publish(GROUP, world(timeouts=dict.fromkeys(names, 1)))

            async def is_there(names: str = names) -> bool:
                there = set(await envoy.clusters()) - {"control_plane"}
                return there == set(names) and await synced(xds)

            await envoy.until(is_there)
        assert await envoy.rejected() == {}
        assert all(each.nacks == 0 for each in xds.status()[0].types)


@both
async def test_a_bad_assignment_does_not_stop_the_others(tmp_path: Path, delta: bool) -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with envoy_on(cache, tmp_path, delta=delta) as (xds, envoy):
        await eventually(lambda: synced(xds))
        cache.publish(GROUP, world(weights={"a": 0, "b": 7}))

        async def b_moved() -> bool:
            return await weight(envoy, "b") == 7

        await envoy.until(b_moved)
        assert await weight(envoy, "a") == 1
        entry = status(xds, ENDPOINT)
        assert (entry.nacks, entry.error_names) == (1, ("a",))
        assert "value must be greater than or equal to 1" in entry.error
        cache.publish(GROUP, world(weights={"a": 5, "b": 7}))

        async def a_moved() -> bool:
            return await weight(envoy, "a") == 5 and await synced(xds)

        await envoy.until(a_moved)


@both
async def test_a_bad_cluster_does_not_stop_the_endpoints_of_another(
    tmp_path: Path, delta: bool
) -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with envoy_on(cache, tmp_path, delta=delta) as (xds, envoy):
        await eventually(lambda: synced(xds))
        for step in (3, 4):
            cache.publish(GROUP, world(timeouts={"a": -1, "b": 1}, weights={"b": step}))

            async def moved(step: int = step) -> bool:
                return await weight(envoy, "b") == step

            await envoy.until(moved)
        assert status(xds, CLUSTER).nacks == 1


@both
async def test_a_restarted_server_is_silent_until_it_knows_something(
    tmp_path: Path, delta: bool
) -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with serving(cache) as (_, port):
        running = running_envoy(ads_bootstrap(port, delta=delta), tmp_path)
        envoy = await running.__aenter__()
    try:
        listener = await envoy.listener_port("main")
        cold = SnapshotCache()
        async with serving(cold, port=port) as (xds, _):

            async def connected() -> bool:
                return len(xds.status()) == 1 and len(xds.status()[0].types) >= 2

            await envoy.until(connected)
            await asyncio.sleep(0.5)
            assert {"a", "b"} <= set(await envoy.clusters())
            assert await envoy.listener_port("main") == listener
            cold.publish(GROUP, world(weights={"a": 9}))

            async def follows() -> bool:
                return await weight(envoy, "a") == 9 and await synced(xds)

            await envoy.until(follows)
            assert await envoy.listener_port("main") == listener
        assert await envoy.rejected() == {}
    finally:
        await running.__aexit__(None, None, None)


@both
async def test_every_type_on_its_own_service(tmp_path: Path, delta: bool) -> None:
    source = per_type_source(delta=delta)
    cache = SnapshotCache()
    cache.publish(GROUP, world(source=source))
    async with (
        serving(cache) as (xds, port),
        running_envoy(per_type_bootstrap(port, delta=delta), tmp_path) as envoy,
    ):
        assert len(xds.status()) >= 5  # CDS, LDS, RDS and one EDS stream per cluster
        cache.publish(GROUP, world(weights={"a": 3}, routed={"a": 5, "b": 1}, source=source))

        async def moved() -> bool:
            return await weight(envoy, "a") == 3

        await envoy.until(moved)
        assert await envoy.rejected() == {}


@both
async def test_batches_of_snapshots_go_through_without_a_single_rejection(
    tmp_path: Path, delta: bool
) -> None:
    cache = SnapshotCache()
    cache.publish(GROUP, world())
    async with envoy_on(cache, tmp_path, delta=delta) as (xds, envoy):
        for step in range(2, 60):
            names = "abc" if step % 3 else "ab"
            cache.publish(
                GROUP,
                world(
                    timeouts=dict.fromkeys(names, 1 + step % 2),
                    weights=dict.fromkeys(names, step),
                    routed=dict.fromkeys(names, step),
                ),
            )
            await asyncio.sleep(0.01)

        async def last() -> bool:
            return await synced(xds) and await weight(envoy, "a") == 59

        await envoy.until(last)
        assert await envoy.rejected() == {}
        assert all(each.nacks == 0 for each in xds.status()[0].types)

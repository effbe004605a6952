"""The whole of it: `xds-server serve`, a real istiod, a sidecar; an operator's order arrives and is seen to."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from tests.fakes.empty_kube import empty_kube
from tests.fakes.envoy import eventually
from tests.fakes.istiod_port import sidecar
from tests.fakes.mesh_lab import HOST, MESH_FILE, SERVICES, TABLE, split, written
from tests.fakes.real_istiod import BINARY, WHY_SKIPPED, free_ports, real_istiod
from tests.fakes.xds_process import running_server
from xds_server.cli import app

pytestmark = pytest.mark.skipif(not BINARY, reason=WHY_SKIPPED)


async def test_an_order_reaches_sidecars_and_the_probe_sees_it(tmp_path: Path) -> None:
    (mcp,) = free_ports(1)
    istiod_at = free_ports(5)
    config = tmp_path / "fleet.yaml"
    raw = yaml.safe_load(MESH_FILE.read_text())
    raw["istio"] |= {
        "config_source": {"listen": f"127.0.0.1:{mcp}"},
        "probe": {"istiod": f"127.0.0.1:{istiod_at[1]}", "late_s": 2},
    }
    config.write_text(yaml.safe_dump(raw))
    written(tmp_path / "services", *SERVICES)
    sources = [f"xds://127.0.0.1:{mcp}", f"fs://{tmp_path / 'services'}"]
    async with (
        empty_kube() as kube,
        running_server(config, tmp_path / "state", ["--grace-s", "0.1"]) as server,
        real_istiod(
            tmp_path / "istiod",
            sources=sources,
            kubeconfig=kube.kubeconfig(tmp_path),
            ports=istiod_at,
        ) as istiod,
        sidecar(istiod.xds, host=HOST, table=TABLE) as watcher,
    ):
        await watcher.until(split(100, 0), timeout_s=10)
        await server.event("mesh_watched", timeout_s=30)

        async def is_followed() -> bool:
            _, text = await server.get("/metrics")
            return 'fleet_istio_unapplied_seconds{model="chat"} 0.0' in text

        await eventually(is_followed)
        order = ["force", "chat/fallback", "--for", "1m", "--why", "a test"]
        done = await asyncio.to_thread(
            CliRunner().invoke, app, [*order, "--admin", server.admin_url]
        )
        assert done.exit_code == 0, done.output
        ordered = time.monotonic()
        await watcher.until(split(0, 100), timeout_s=0.5, since=ordered)
        await eventually(is_followed)
        assert await server.metric("fleet_istio_applied_seconds_count") >= 1
        assert server.named("mesh_not_following") == []

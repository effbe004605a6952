"""The client library is imported by who asks for it, and who lacks it is told."""

from __future__ import annotations

import subprocess
import sys

from tests.fakes.mesh_config import mesh_config, write_config
from tests.fakes.xds_process import ROOT, command

WITHOUT = "import sys; sys.modules['kubernetes_asyncio'] = None; "


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_server_without_the_section_never_imports_it():
    code = "import sys, xds_server.app; sys.exit('kubernetes_asyncio' in sys.modules)"
    assert run(code).returncode == 0


def test_who_asks_for_the_way_and_lacks_the_library_is_told_how_to_get_it(tmp_path):
    config = write_config(tmp_path / "fleet.yaml", mesh_config(kubernetes={}))
    main = WITHOUT + "from xds_server.cli import main; main()"
    arguments = command(config, tmp_path / "state")[3:]
    done = run(main, *arguments)
    assert done.returncode == 1
    assert "istio.kubernetes needs gpu-xds[kubernetes]" in done.stderr
    done = run(main, "istio", "apply", str(config), "--offline")
    assert done.returncode == 1
    assert "istio.kubernetes needs gpu-xds[kubernetes]" in done.stderr
    done = run(main, "check-config", str(config))
    assert done.returncode == 0, "a configuration is right or wrong on every machine"

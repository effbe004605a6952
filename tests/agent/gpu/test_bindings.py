"""Which module `import pynvml` gives: NVIDIA's, or one that shadows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("gpu_process.py")


def python(*arguments, path):
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


@pytest.fixture
def shadow(tmp_path):
    """What `pip install pynvml==11.5.3` leaves: a package, which wins over NVIDIA's module."""
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml" / "__init__.py").write_text("nvmlMemory_v2 = 0x02000028\n")
    info = tmp_path / "pynvml-11.5.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pynvml\nVersion: 11.5.3\n")
    (info / "top_level.txt").write_text("pynvml\n")
    return tmp_path


def test_a_package_that_shadows_the_bindings_is_named(shadow):
    result = python(str(SCRIPT), path=[shadow])
    assert result.returncode == 2
    assert result.stderr == (
        f"the module pynvml ({shadow / 'pynvml' / '__init__.py'}) comes from pynvml, expected "
        "nvidia-ml-py: uninstall pynvml and reinstall nvidia-ml-py\n"
    )


def test_missing_bindings_are_told_with_the_way_out(tmp_path):
    (tmp_path / "pynvml.py").write_text("raise ImportError('No module named pynvml')\n")
    result = python(str(SCRIPT), path=[tmp_path])
    assert result.returncode == 2
    assert "install nvidia-ml-py, or run with gpu: none" in result.stderr


def test_the_warning_that_pynvml_13_adds_to_the_import_is_not_shown(tmp_path):
    (tmp_path / "hook.py").write_text(
        """
import importlib.abc, sys, warnings
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pynvml":
            warnings.warn("The pynvml package is deprecated", FutureWarning, stacklevel=2)
sys.meta_path.insert(0, Finder())
from sidecar_agent.gpu.nvml import load_bindings
load_bindings()
"""
    )
    result = python("-W", "error", str(tmp_path / "hook.py"), path=[tmp_path])
    assert (result.returncode, result.stderr) == (0, "")


def test_importing_the_agents_gpu_side_needs_no_bindings(tmp_path):
    code = (
        "import sys, sidecar_agent.gpu.backend as b; "
        "b.make_worker(b.GpuBackend.NONE); print('pynvml' in sys.modules)"
    )
    assert python("-c", code, path=[]).stdout == "False\n"

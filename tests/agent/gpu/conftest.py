"""Fixtures: the NVML fake inside this process, and processes under the stub library."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from demo.nvmlstub import StubState
from sidecar_agent.gpu.meminfo import SystemMemory
from sidecar_agent.gpu.nvml import NvmlReader, NvmlSettings
from tests.fakes.nvml import GIB, Clock, FakeNvml, GpuProcess, Longest, install, stub_library

SCRIPT = Path(__file__).with_name("gpu_process.py")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep what daemon threads log out of the test run's own output."""
    with capture_logs():
        yield


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The library inside this process, without GPUs."""
    return install(monkeypatch, FakeNvml())


@pytest.fixture
def clock() -> Clock:
    """The reader's time."""
    return Clock()


@pytest.fixture
def reader(nvml: FakeNvml, clock: Clock) -> Iterator[Callable[..., NvmlReader]]:
    """Make readers of the in-process library; they end with the test and leave nothing open."""

    def make(**settings: Any) -> NvmlReader:
        made = NvmlReader(
            settings=NvmlSettings(**settings),
            system_memory=lambda: SystemMemory(total_bytes=128 * GIB, available_bytes=96 * GIB),
            clock=clock,
            rng=Longest(),
        )
        readers.append(made)
        return made

    readers: list[NvmlReader] = []
    yield make
    nvml.errors.clear()
    for made in readers:
        made.close()
    assert nvml.refcount == 0


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub library."""
    return stub_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub of a driver before R510."""
    return stub_library(tmp_path_factory.mktemp("nvml-old"), old_driver=True)


@pytest.fixture
def state(tmp_path: Path) -> StubState:
    """The GPUs under the stub; none at first."""
    return StubState(tmp_path / "state")


@pytest.fixture
def run(library: Path, state: StubState, tmp_path: Path) -> Iterator[Callable[..., GpuProcess]]:
    """Start processes that read the GPUs of `state`; they end with the test."""
    with ExitStack() as stack:

        def start(
            *, variables: dict[str, str] | None = None, using: Path = library, **options: Any
        ) -> GpuProcess:
            return stack.enter_context(
                GpuProcess(
                    SCRIPT,
                    library=using,
                    state=state,
                    calls=tmp_path / "calls",
                    arguments=(json.dumps(options),),
                    variables=variables,
                )
            )

        yield start

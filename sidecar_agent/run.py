"""`sidecar-agent run`: the agent, its admin pages and its signals, until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from typing import Any

import structlog

import sidecar_agent
from fleet_notify import ServiceManager
from sidecar_agent.admin import AddressError, serving
from sidecar_agent.agent import Agent
from sidecar_agent.gpu.backend import GpuBackend, make_worker
from sidecar_agent.gpu.worker import GpuWorker
from sidecar_agent.settings import Settings

EXIT_OK = 0
EXIT_ADDRESS = 3
"""The admin address cannot be bound."""
EXIT_RESTART = 75
"""EX_TEMPFAIL: only a new process can read the GPUs again (a new driver library)."""
_RESTART_POLL_S = 1.0


async def run(settings: Settings, gpu: GpuWorker | None) -> int:
    """Run until SIGTERM or SIGINT; return the process's exit code."""
    log: Any = structlog.get_logger("agent")
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[int] = loop.create_future()

    def end(code: int) -> None:
        if not stop.done():
            stop.set_result(code)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, EXIT_OK)
    # Without a handler these two would end a process that has no GPU to let go of.
    loop.add_signal_handler(signal.SIGUSR1, gpu.release if gpu else _nothing)
    loop.add_signal_handler(signal.SIGUSR2, gpu.reacquire if gpu else _nothing)
    if gpu is not None:
        gpu.start()
    agent = Agent(
        settings,
        gpu=gpu,
        epoch=time.time_ns() // 1_000_000,
        clock=time.monotonic,
        rng=random.Random(),
    )
    try:
        async with serving(agent, settings.admin) as bound:
            log.info(
                "agent_started",
                version=sidecar_agent.__version__,
                agent=agent.identity.agent,
                epoch=agent.identity.epoch,
                admin=bound,
                control_planes=list(settings.control_plane.address),
                instances=[one.name for one in settings.instances],
            )
            manager = ServiceManager.of_environment()
            manager.ready(f"sending to {', '.join(settings.control_plane.address)}")
            return await _until(stop, agent, gpu, end, manager)
    except AddressError as error:
        log.error("admin_address_not_bound", address=settings.admin, detail=str(error))  # noqa: TRY400
        return EXIT_ADDRESS
    finally:
        if gpu is not None:
            gpu.close()
        log.info("agent_stopped")


def _nothing() -> None:
    """Take a signal that means nothing here."""


async def _until(
    stop: asyncio.Future[int],
    agent: Agent,
    gpu: GpuWorker | None,
    end: Any,
    manager: ServiceManager,
) -> int:
    running = asyncio.create_task(agent.run(), name="agent")
    beating = asyncio.create_task(manager.beat(), name="watchdog")
    watching = asyncio.create_task(_watch_restart(gpu, end), name="gpu-restart")
    try:
        pending: set[asyncio.Future[Any]] = {stop, running, beating, watching}
        while not stop.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()  # a bug in any of them ends the process with its traceback
        return stop.result()
    finally:
        manager.stopping()
        for task in (running, watching, beating):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _watch_restart(gpu: GpuWorker | None, end: Any) -> None:
    while gpu is not None:
        await asyncio.sleep(_RESTART_POLL_S)
        if gpu.latest().restart_needed:
            end(EXIT_RESTART)
            return


def gpu_worker(settings: Settings) -> GpuWorker | None:
    """Return what reads the GPUs, not yet started; None for `gpu.backend: none`.

    Raises:
        WrongBindingsError: `pynvml` on this host is not NVIDIA's.
    """
    if settings.gpu.backend == "none":
        return None
    return make_worker(GpuBackend.NVML, interval_s=settings.gpu.interval_s)

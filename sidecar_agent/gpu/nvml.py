"""NVIDIA GPUs through NVML: one initialization for the life of the process.

Init and shutdown per poll leak file descriptors and run into driver bugs (all-smi#118, go-nvml#152), so
the library is opened once and again only after a status that ends the session, with full-jitter
back-off. It is never opened before a fork: the agent has no fork. The wheel is `nvidia-ml-py`; its module
is called `pynvml`, and so is another distribution that shadows it: `load_bindings` tells them apart.
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import structlog

from sidecar_agent.gpu.calls import NvmlCalls
from sidecar_agent.gpu.devices import DeviceReader
from sidecar_agent.gpu.events import XidWatcher
from sidecar_agent.gpu.facts import DriverState, GpuReading, GpuSnapshot
from sidecar_agent.gpu.fields import FieldReader
from sidecar_agent.gpu.health import BROKEN
from sidecar_agent.gpu.meminfo import SystemMemory, capped, parse_cgroup_bytes, parse_meminfo
from sidecar_agent.gpu.memory import MemoryReader
from sidecar_agent.gpu.notices import Notices
from sidecar_agent.gpu.reader import faded
from sidecar_agent.gpu.status import ABSENT, RESTART, RESTART_ALWAYS, NvmlStatusError
from sidecar_agent.gpu.xid import XidLedger

log = structlog.get_logger(__name__)

DISTRIBUTION = "nvidia-ml-py"

CGROUP = Path("/sys/fs/cgroup")
"""This process's own cgroup as a container sees it; a host's root cgroup has no memory.max."""


class WrongBindingsError(RuntimeError):
    """`import pynvml` did not give NVIDIA's own bindings; the message names what did."""


def load_bindings() -> ModuleType:
    """Import NVIDIA's bindings; touches no driver.

    Raises:
        WrongBindingsError: Another distribution owns the module, or none does.
    """
    try:
        with warnings.catch_warnings():
            # `pynvml` 13 hooks this import to warn although NVIDIA's own module is what it gives.
            warnings.simplefilter("ignore", FutureWarning)
            import pynvml  # noqa: PLC0415 - hosts without GPUs need no bindings
    except ImportError as error:
        raise WrongBindingsError(
            f"cannot read GPUs: {error}; install {DISTRIBUTION}, or run with gpu: none"
        ) from error
    expected = ("nvmlMemory_v2", "_nvmlGetFunctionPointer")
    if all(hasattr(pynvml, name) for name in expected):
        return pynvml  # type: ignore[no-any-return]
    owners = [d for d in packages_distributions().get("pynvml", []) if d != DISTRIBUTION]
    culprit = ", ".join(dict.fromkeys(owners)) or "an unknown distribution"
    raise WrongBindingsError(
        f"the module pynvml ({pynvml.__file__}) comes from {culprit}, expected {DISTRIBUTION}: "
        f"uninstall {culprit} and reinstall {DISTRIBUTION}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSettings:
    """How a driver that does not answer is tried again."""

    backoff_base_s: float = 2.0
    """Longest first pause between attempts; doubles."""
    backoff_cap_s: float = 20.0
    """Longest pause while the driver is missing or broken."""
    lost_backoff_cap_s: float = 300.0
    """Longest pause while the driver answers but every GPU is gone: opening anew is what brings back
    a GPU that was reset, and what some drivers do not survive often."""
    restart_after: int = 5
    """Failed attempts after which only a new process can help (see `status.RESTART`)."""


class NvmlReader:
    """A `GpuReader` over NVML. All calls on one thread, except the XID watcher's waits."""

    def __init__(
        self,
        *,
        bindings: ModuleType | None = None,
        ledger: XidLedger | None = None,
        settings: NvmlSettings | None = None,
        system_memory: Callable[[], SystemMemory] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare; the driver is first touched by `open`.

        Args:
            bindings: The pynvml module; NVIDIA's own where not given.
            ledger: Where XIDs are kept.
            settings: Back-off.
            system_memory: What GPUs without memory of their own use; this host's where not given.
            clock: Monotonic seconds.
            rng: Jitter.

        Raises:
            WrongBindingsError: `pynvml` is not NVIDIA's.
        """
        self._calls = NvmlCalls(bindings or load_bindings())
        self._settings = settings or NvmlSettings()
        self._clock = clock
        self._rng = rng or random.Random()
        self._notices = Notices()
        self._ledger = ledger or XidLedger()
        self._fields = FieldReader(self._calls, self._notices)
        memory = MemoryReader(
            self._fields,
            v2_version=self._calls.constant("nvmlMemory_v2"),
            system_memory=system_memory or host_memory,
        )
        self._devices = DeviceReader(
            self._calls, fields=self._fields, memory=memory, notices=self._notices
        )
        self._on_trouble: Callable[[], None] | None = None
        self._watcher = XidWatcher(self._calls, self._ledger, on_trouble=self._trouble, clock=clock)
        self._is_open = False
        self._failures = 0
        self._retry_at = 0.0
        self._last = GpuSnapshot(driver=DriverState.STARTING)

    def subscribe(self, on_trouble: Callable[[], None]) -> None:
        """Call back, from the XID watcher's thread, when the next reading should not wait."""
        self._on_trouble = on_trouble

    def _trouble(self) -> None:
        if self._on_trouble is not None:
            self._on_trouble()

    def open(self) -> None:
        """Initialize the library; a failure is remembered and tried again by `read`."""
        self._failures = 0
        self._initialize()

    def read(self) -> GpuSnapshot:
        """Read every GPU once; while the driver is gone, say so and try again when it is time."""
        now = self._clock()
        if not self._is_open:
            if now < self._retry_at:
                return replace(self._last, read_at=now)
            if not self._initialize():
                return self._last
        try:
            gpus = self._devices.read()
        except NvmlStatusError as error:
            self._end_session()
            return self._fail(error)
        self._watcher.listen(self._devices.gpus)
        self._ledger.observe(gpus, now=self._clock())
        self._tell(gpus)
        self._last = replace(
            self._last,
            driver=DriverState.OK,
            detail=self._devices.unidentified or ("" if gpus else "the driver lists no GPU"),
            read_at=now,
            gpus=gpus,
            rejected=self._fields.rejected,
            restart_needed=False,
        )
        self._consider_reopening(gpus)
        return self._last

    def close(self) -> None:
        """Shut the library down, so that the driver can be unloaded, reset or upgraded."""
        self._end_session()

    def _initialize(self) -> bool:
        try:
            self._calls.call("nvmlInit")
            self._is_open = True
            version = self._calls.call("nvmlSystemGetDriverVersion")
        except NvmlStatusError as error:
            self._end_session()
            self._fail(error)
            return False
        self._devices.forget()
        self._last = replace(self._last, driver_version=version)
        if self._notices.changed("driver", "ok"):
            log.info("gpu_driver_opened", version=version)
        return True

    def _end_session(self) -> None:
        """Balance the initialization; a shutdown that fails leaves nothing to be done about it."""
        if not self._is_open:
            return
        self._watcher.stop()
        self._is_open = False
        try:
            self._calls.call("nvmlShutdown")
        except NvmlStatusError as error:
            if self._notices.changed("shutdown", error.status):
                log.info("gpu_driver_shutdown_failed", reason=error.text)

    def _fail(self, error: NvmlStatusError) -> GpuSnapshot:
        """Note that the driver as a whole does not answer, and when to try again."""
        self._back_off(self._settings.backoff_cap_s)
        was_read = bool(self._last.driver_version)
        is_absent = error.status in ABSENT and not was_read
        hopeless = error.status in (RESTART if was_read else RESTART_ALWAYS)
        driver = DriverState.ABSENT if is_absent else DriverState.FAILED
        if self._notices.changed("driver", error.status):
            (log.info if is_absent else log.warning)(
                "gpu_driver_absent" if is_absent else "gpu_driver_failed",
                call=error.call,
                reason=error.text,
            )
        self._last = replace(
            faded(self._last, driver=driver, detail=error.text),
            read_at=self._clock(),
            restart_needed=hopeless and self._failures >= self._settings.restart_after,
        )
        return self._last

    def _back_off(self, cap_s: float) -> None:
        """Full jitter: many agents of a host class do not come back in step."""
        longest = min(cap_s, self._settings.backoff_base_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        self._retry_at = self._clock() + self._rng.uniform(0, longest)

    def _consider_reopening(self, gpus: tuple[GpuReading, ...]) -> None:
        """Open the library anew, now and then, while the driver lists GPUs but none of them works.

        A GPU that was reset answers only in a new session. While one GPU still works it is left in
        peace.
        """
        if not gpus or any(gpu.health not in BROKEN for gpu in gpus):
            self._failures = 0
            self._retry_at = 0.0
            return
        if self._retry_at == 0.0:
            self._back_off(self._settings.lost_backoff_cap_s)
        elif self._clock() >= self._retry_at:
            self._end_session()
            self._back_off(self._settings.lost_backoff_cap_s)
            self._initialize()

    def _tell(self, gpus: tuple[GpuReading, ...]) -> None:
        """Log each GPU whose health is another than before."""
        for gpu in gpus:
            if self._notices.changed(f"health {gpu.uuid}", gpu.health, initially="ok"):
                (log.warning if gpu.health in BROKEN else log.info)(
                    "gpu_health_changed", gpu=gpu.uuid, health=gpu.health.value, detail=gpu.detail
                )


def host_memory() -> SystemMemory:
    """Read this host's memory, capped by the cgroup this process runs in.

    Raises:
        OSError: /proc is not there.
        MeminfoError: It says something unexpected.
    """
    memory = parse_meminfo(Path("/proc/meminfo").read_text(encoding="ascii"))
    return capped(
        memory, limit_bytes=_cgroup_bytes("memory.max"), used_bytes=_cgroup_bytes("memory.current")
    )


def _cgroup_bytes(name: str) -> int | None:
    """Read a limit of cgroup v2; None where there is no such file (not in a container, or v1)."""
    try:
        text = (CGROUP / name).read_text(encoding="ascii")
    except OSError:
        return None
    return parse_cgroup_bytes(text)

"""What a device's facts say about its health. Pure."""

from __future__ import annotations

from sidecar_agent.gpu.facts import Fact, GpuHealth

HW_SLOWDOWN = 0x8
HW_THERMAL = 0x40
HW_POWER_BRAKE = 0x80
_THROTTLES = {
    HW_THERMAL: "hardware thermal slowdown",
    HW_POWER_BRAKE: "power brake",
    HW_SLOWDOWN: "hardware slowdown",
}
"""Bits of nvmlClocksEventReasons that mean trouble. The software power cap (0x4) does not: it is set on
every GPU that works hard."""

_RECOVERY_ACTIONS = {
    1: "GPU reset",
    2: "node reboot",
    3: "drain of peer-to-peer traffic",
    4: "drain and reset",
    5: "IMEX domain recovery",
    6: "bus reset",
    7: "system reboot",
}
"""Values of NVML_FI_DEV_GET_GPU_RECOVERY_ACTION."""

_BADNESS = (
    GpuHealth.OK,
    GpuHealth.UNKNOWN,
    GpuHealth.THROTTLED,
    GpuHealth.RESET_REQUIRED,
    GpuHealth.LOST,
)
BROKEN = frozenset({GpuHealth.RESET_REQUIRED, GpuHealth.LOST})
"""Work on such a GPU fails."""


def badness(health: GpuHealth) -> int:
    """Rank a health; greater is worse. Unknown is worse than ok: it may not be called ok."""
    return _BADNESS.index(health)


def judge(*, reasons: Fact, action: Fact, answered: bool) -> tuple[GpuHealth, str]:
    """Judge a device that could be talked to.

    Args:
        reasons: Clocks event reasons.
        action: What the driver asks for to recover the device.
        answered: Whether any number at all could be read.

    Returns:
        The health, and why it is not ok.
    """
    if action.number:
        what = _RECOVERY_ACTIONS.get(int(action.number), f"recovery action {action.number:.0f}")
        return GpuHealth.RESET_REQUIRED, f"the driver asks for: {what}"
    if reasons.number is not None:
        bits = int(reasons.number)
        said = [text for bit, text in _THROTTLES.items() if bits & bit]
        if said:
            return GpuHealth.THROTTLED, ", ".join(said)
    return (GpuHealth.OK, "") if answered else (GpuHealth.UNKNOWN, "no number could be read")

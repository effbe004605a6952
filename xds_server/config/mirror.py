"""Pydantic models made from the core's policy dataclasses.

The thresholds, their defaults and their documentation live in `xds_server.core.policy` and nowhere
else; what is added here is the range that each name promises by its suffix.
"""

from __future__ import annotations

import dataclasses
import inspect
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, create_model


class Section(BaseModel):
    """A mapping of the file: unknown keys are refused."""

    # Validators are built when a file is first read: most commands read none.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    documented_by: ClassVar[type[Any] | None] = None
    """The class under whose attributes the documentation of the keys is written; None = the section's own."""


SECONDS_MIN = 0.001
"""Less is nothing to Envoy, or never."""
SECONDS_MAX = 1_000_000_000
"""Thirty years; protobuf's durations end at ten thousand."""
WHOLE_MAX = 1_000_000_000
"""Envoy's counts are of 32 bits."""


def is_printed(text: str) -> bool:
    """Whether a text is of ASCII that is seen: all that there is in a path or a host."""
    return text.isascii() and text.isprintable() and " " not in text


def _is_path(text: str) -> str:
    if not is_printed(text):
        raise ValueError("a path of printable ASCII without spaces, others as %20")
    return text


Path = Annotated[str, Field(pattern=r"^/"), AfterValidator(_is_path)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Whole = Annotated[int, Strict()]
Ratio = Annotated[Number, Field(ge=0, le=1)]
Seconds = Annotated[Number, Field(ge=0)]

_POSITIVE = frozenset(
    {
        "consecutive", "header_timeout_s", "interval_s", "stale_intervals", "blind_after_s", "scale",
        "correction_min", "correction_max", "waiting_scale_ratio", "queue_scale_ratio", "target",
        "quarantine_faults", "demand_smoothing_s", "capacity_window_s", "rise_per_s", "fall_per_s",
        "timeout_s", "unhealthy", "healthy",
        "flush_s", "load_report_s", "entries_per_second", "window_s", "ratio_window_s", "failure_ratio",
        "minimum_attempts",
        "default_max_tokens", "burst_s", "largest_request_tokens", "divisions", "shift_ratio",
    }
)  # fmt: skip
"""Fields for which zero would divide by zero or mean "never"."""

_RATIOS = frozenset(
    {"high", "critical", "margin", "clear_margin", "target", "queue_trim", "gain", "pi_setpoint"}
)
"""Ratios 0-1 whose names do not end in `_ratio`."""


def mirror(policy: type[Any]) -> type[Section]:
    """Make the file's section for a policy dataclass (nested dataclasses become sections)."""
    hints = get_type_hints(policy)
    fields: dict[str, Any] = {}
    for each in dataclasses.fields(policy):
        kind = hints[each.name]
        if dataclasses.is_dataclass(kind):
            section = mirror(kind)  # type: ignore[arg-type]
            fields[each.name] = (section, Field(default_factory=section))
        else:
            fields[each.name] = (_annotated(each.name, kind), Field(default=each.default))
    made = create_model(policy.__name__, __base__=Section, __doc__=inspect.getdoc(policy), **fields)
    made.documented_by = policy
    return made


def to_policy(policy: Any, section: BaseModel) -> Any:
    """Make the dataclass that a section made by `mirror` describes."""
    values: dict[str, Any] = {}
    hints = get_type_hints(policy)
    for each in dataclasses.fields(policy):
        value = getattr(section, each.name)
        kind = hints[each.name]
        values[each.name] = to_policy(kind, value) if dataclasses.is_dataclass(kind) else value
    return policy(**values)


def _annotated(name: str, kind: Any) -> Any:
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return kind
    if kind is bool:
        return Annotated[bool, Strict()]
    if kind is str:
        return Path if name == "path" else str
    if get_origin(kind) is UnionType:
        (inner,) = (each for each in get_args(kind) if each is not NoneType)
        return _annotated(name, inner) | None
    if get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        return tuple[_annotated(name, inner), ...]  # type: ignore[misc]
    number: Any = Whole if kind is int else Number
    bounds: dict[str, Any] = {"gt": 0} if name in _POSITIVE else {"ge": 0}
    if name.endswith("_ratio") or name in _RATIOS or name == "stages":
        bounds["le"] = 1
    elif name.endswith("_s") and not name.endswith("_per_s"):
        bounds = {"ge": SECONDS_MIN if name in _POSITIVE else 0, "le": SECONDS_MAX}
    elif kind is int and not name.endswith("_bytes"):
        bounds["le"] = WHOLE_MAX
    return Annotated[number, Field(**bounds)]

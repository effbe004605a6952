"""Values that are made by the ten thousand.

A frozen dataclass sets each field through `object.__setattr__`: 2 us for nine fields, six times as
long as a plain one. `record` makes classes that are immutable for the type checker (mypy rejects
assignment) and plain, slotted and compared by value at run time.

Where one is made per instance and evaluation its fields are given by position, in the order of the
class: CPython 3.11 packs keywords into a dict first, which doubles the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[_T]) -> type[_T]:
    """Make a value class that is cheap to create.

    Args:
        cls: A class with annotated fields, as for `dataclass`.

    Returns:
        The slotted dataclass. Treat instances as frozen; the type checker does.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)

"""One row of the timeline, and the question that rows answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """What sort of thing happened."""

    DECISION = "decision"
    """The brain decided: a state, a level, a rule that began or ended."""
    WEIGHTS = "weights"
    """Tier weights of a model as they were published, at most once a second."""
    PROXY = "proxy"
    """A proxy came, went, refused a response or took one again."""
    CONFIG = "config"
    """The configuration was loaded, reloaded or refused."""
    OPERATOR = "operator"
    """A person ordered something."""
    PROCESS = "process"
    """The control plane started or ended."""
    MESH = "mesh"
    """What an Istio mesh was told, refused, or did not follow."""
    STORE = "store"
    """This history itself had trouble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Something that happened. Empty text = does not apply."""

    at_unix_s: float
    kind: Kind
    name: str
    """snake_case, past tense: `instance_down`, `xds_nack_received`."""
    id: int | None = None
    """Grows with time; None until it is on disk."""
    model: str = ""
    tier: str = ""
    instance: str = ""
    proxy: str = ""
    who: str = ""
    why: str = ""
    before: str = ""
    after: str = ""
    rule: str = ""
    """The rule that decided."""
    text: str = ""
    """One sentence for a person."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Plain JSON: the numbers the rule looked at, or what belongs to this kind."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Tells it from other rows, whether it is on disk or not."""
        return (round(self.at_unix_s * 1e6), self.kind, self.name, *self._texts())

    def _texts(self) -> tuple[str, ...]:
        return tuple(_storable(getattr(self, key)) for key in TEXTS)

    def document(self) -> dict[str, Any]:
        """Return it as JSON values, without what is empty."""
        values: dict[str, Any] = {
            "id": self.id,
            "at_unix_s": self.at_unix_s,
            "kind": self.kind.value,
            "name": self.name,
        }
        values.update({key: text for key in TEXTS if (text := getattr(self, key))})
        if self.data:
            values["data"] = dict(self.data)
        return values


TEXTS = ("model", "tier", "instance", "proxy", "who", "why", "before", "after", "rule", "text")
"""The fields that are text and may be empty."""
COLUMNS = ("id", "at_us", "kind", "name", *TEXTS, "data")
Columns = tuple[Any, ...]
"""Values of `COLUMNS`, as SQLite takes them."""


def to_columns(row: Row) -> Columns:
    """Return the values of `COLUMNS`; the file numbers rows itself unless one has its number."""
    data = json.dumps(row.data, ensure_ascii=False, default=str) if row.data else ""
    at_us, kind, name, *texts = row.key
    return (row.id, at_us, kind.value, name, *texts, _storable(data))


def from_columns(values: Columns) -> Row:
    """Return the row of these values of `COLUMNS`.

    Raises:
        ValueError: A value is not what was written.
    """
    number, at_us, kind, name, *texts, data = values
    return Row(
        id=number,
        at_unix_s=at_us / 1e6,
        kind=Kind(kind),
        name=name,
        data=json.loads(data) if data else {},
        **dict(zip(TEXTS, texts, strict=True)),
    )


def _storable(text: str) -> str:
    """Text of a proxy or an engine may hold half a surrogate pair, which no UTF-8 can."""
    return str(text).encode("utf-8", "replace").decode("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which rows are asked for. None and empty = whatever it is."""

    model: str = ""
    tier: str = ""
    instance: str = ""
    proxy: str = ""
    name: str = ""
    kinds: tuple[Kind, ...] = ()
    since_unix_s: float | None = None
    until_unix_s: float | None = None
    after: int | None = None
    """Only rows with a greater number."""
    limit: int = 200
    """The newest this many ... """
    oldest_first: bool = False
    """... or the oldest; they are always given in the order in which they happened."""

    def fits(self, row: Row) -> bool:
        """Whether a row that is not on disk yet is asked for; who follows numbers waits until it has one."""
        return (
            self.after is None
            and all(
                not wanted or wanted == getattr(row, key)
                for key in ("model", "tier", "instance", "proxy", "name")
                for wanted in (getattr(self, key),)
            )
            and (not self.kinds or row.kind in self.kinds)
            and (self.since_unix_s is None or row.at_unix_s >= self.since_unix_s)
            and (self.until_unix_s is None or row.at_unix_s <= self.until_unix_s)
        )

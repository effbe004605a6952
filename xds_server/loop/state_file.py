"""The last plan on disk, so that a restarted server continues where it stopped.

Written atomically (a reader sees the old or the new file, never half of one) and rarely; a disk that
is full or gone costs a warning and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

from xds_server.config.addresses import format_address, parse_endpoint
from xds_server.core.model import Instance, InstanceId, ModelName, TierName
from xds_server.registered import Registered

FORMAT = 1
NAME = "plan.json"
_PIECES_DEPTH = 3
"""Root, brain, models: the JSON of each model is made by itself. The encoder does not let other threads
run before it is done, and all of ten thousand instances would stop the control loop for 0.1 s."""


class StateError(Exception):
    """The file is there and cannot be used; the text says why."""


class StateFile:
    """One JSON file in the state directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME

    def read(self) -> dict[str, Any] | None:
        """Return what was written last; None if nothing ever was.

        Raises:
            StateError: The file cannot be read or is not one of ours.
        """
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(f"cannot be read: {error}") from error
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise StateError(f"is not JSON: {error}") from error
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            found = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise StateError(f"has format {found!r}; this version reads {FORMAT}")
        return data

    def try_write(self) -> None:
        """Write something beside the file and take it away again.

        Raises:
            OSError: The directory does not take files.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=f".{NAME}.") as file:
            file.write(b"{}")
            file.flush()

    def write(self, data: Mapping[str, Any]) -> None:
        """Replace the file.

        Args:
            data: Plain JSON values; a function stands for what it returns, and is called when it is its
                turn.

        Raises:
            OSError: The disk did not take it; the file is as before.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{NAME}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.writelines(_pieces({"format": FORMAT, **data}, _PIECES_DEPTH))
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise


def _pieces(value: Any, depth: int) -> Iterator[str]:
    if callable(value):
        value = value()
    if depth == 0 or not isinstance(value, dict):
        yield json.dumps(value, separators=(",", ":"))
        return
    lead = "{"
    for key, each in value.items():
        yield f"{lead}{json.dumps(key)}:"
        yield from _pieces(each, depth - 1)
        lead = ","
    yield "}" if value else "{}"


def dump_registered(registered: Iterable[Registered]) -> list[dict[str, Any]]:
    """Write registered instances as plain JSON values."""
    return [
        {
            "model": each.model,
            "tier": each.tier,
            "name": each.instance.id,
            "host": each.instance.host,
            "port": each.instance.port,
            "capacity": each.instance.capacity,
        }
        for each in registered
    ]


def load_registered(rows: Any) -> list[Registered]:
    """Read what `dump_registered` wrote.

    Raises:
        StateError: It is something else.
    """
    try:
        return [_registered(row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"has broken registered instances: {error!r}") from error


def _registered(row: Mapping[str, Any]) -> Registered:
    names = [row[key] for key in ("model", "tier", "name")]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"names {names!r}")
    host, port = parse_endpoint(format_address(str(row["host"]), int(row["port"])))
    capacity = None if row["capacity"] is None else float(row["capacity"])
    if capacity is not None and not 0.0 < capacity < inf:
        raise ValueError(f"capacity {capacity}")
    model, tier, name = names
    return Registered(
        model=ModelName(model),
        tier=TierName(tier),
        instance=Instance(id=InstanceId(name), host=host, port=port, capacity=capacity),
    )

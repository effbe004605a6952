"""The file of a recording: JSON lines, mostly gzipped.

{"recording": 1, "start": ..., "unix_s": ..., "config_version": ..., "brain": ...}   the state it began with
{"step": now, "inputs": ..., "digest": ...}            one evaluation: what came in, what was decided
{"requests": now, "model": ..., "counts": {...}}       what proxies saw of the classes
{"config": now, "topology": ..., "policy": ...}        the fleet was configured anew
{"end": why}                                           empty = the time was over
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xds_server.core.inputs import Input
from xds_server.core.model import ModelName, Topology
from xds_server.core.plan import ModelPlan, Plan
from xds_server.core.policy import Policy
from xds_server.fleet import Evaluated, Memory, Reconfigured, Saw, Step
from xds_server.recording.codec import CodecError, decode, encode

FORMAT = 1
STILL_HERE = b"\n"
"""A line that is sent while there is nothing to say; it is not kept."""
MOST_BYTES = 64 * 1024 * 1024
"""Of one line; ten thousand instances need half of it."""


class RecordingError(Exception):
    """The file cannot be played; the text is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a recording began with."""

    start: float
    """Monotonic seconds of the control plane."""
    unix_s: float
    config_version: str
    """The start of the SHA-256 of the configuration file."""
    topology: Topology
    policy: Policy
    memory: Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One recorded step, and what was decided then."""

    step: Evaluated | Reconfigured | Saw
    digest: str = ""


class Digests:
    """Short names of plans. A model's plan that did not change is looked at once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[ModelPlan, bytes]] = {}

    def of(self, plan: Plan) -> str:
        """Return the name of everything in a plan: numbers, reasons, events, deadline."""
        whole = hashlib.sha256()
        known = {}
        for model in plan.models:
            found = self._known.get(id(model))
            if found is None:
                found = model, hashlib.sha256(repr(model).encode()).digest()
            known[id(model)] = found
            whole.update(found[1])
        self._known = known
        whole.update(repr((plan.events, plan.next_deadline)).encode())
        return whole.hexdigest()[:16]


def head_line(head: Head) -> bytes:
    """Write the first line."""
    return _line(
        {
            "recording": FORMAT,
            "start": head.start,
            "unix_s": head.unix_s,
            "config_version": head.config_version,
            "brain": encode((head.topology, head.policy, head.memory)),
        }
    )


def step_lines(steps: Sequence[Step], digests: Digests) -> bytes:
    """Write some steps."""
    return b"".join(_line(_step(step, digests)) for step in steps)


def end_line(reason: str) -> bytes:
    """Write the last line."""
    return _line({"end": reason})


def _step(step: Step, digests: Digests) -> dict[str, Any]:
    if isinstance(step, Evaluated):
        return {
            "step": step.now,
            "inputs": encode(tuple(step.inputs)),
            "digest": digests.of(step.plan),
        }
    if isinstance(step, Saw):
        return {"requests": step.now, "model": step.model, "counts": dict(step.counts)}
    return {
        "config": step.now,
        "topology": encode(step.topology),
        "policy": encode(step.policy),
    }


def _line(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class Recording:
    """An open recording. It is read line by line, for it may be larger than the memory."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            RecordingError: It cannot be read, or is no recording of this version.
        """
        self.path = path
        self._lines = self._read()
        first = next(self._lines, None)
        if first is None:
            raise RecordingError(f"{path}: it is empty")
        if first.get("recording") != FORMAT:
            raise RecordingError(f"{path}: it is no recording of format {FORMAT}")
        try:
            topology, policy, memory = decode(first["brain"])
            self.head = Head(
                start=float(first["start"]),
                unix_s=float(first["unix_s"]),
                config_version=str(first["config_version"]),
                topology=topology,
                policy=policy,
                memory=memory,
            )
        except (CodecError, LookupError, TypeError, ValueError) as error:
            raise self._wrong(error) from error
        self.end: str | None = None
        """Why it ended; None before the last line, or if that is missing."""

    def steps(self) -> Iterator[Played]:
        """Yield what was recorded, in order.

        Raises:
            RecordingError: A line cannot be read.
        """
        for document in self._lines:
            if "end" in document:
                self.end = str(document["end"])
                return
            try:
                yield _played(document)
            except (CodecError, LookupError, TypeError, ValueError, AttributeError) as error:
                raise self._wrong(error) from error

    def _read(self) -> Iterator[dict[str, Any]]:
        path = self.path
        number = 0
        try:
            with path.open("rb") as raw:
                is_packed = raw.read(2) == b"\x1f\x8b"
            with gzip.open(path) if is_packed else path.open("rb") as file:
                while line := file.readline(MOST_BYTES):
                    try:
                        document = json.loads(line)
                    except ValueError:
                        if number and not line.endswith(b"\n"):
                            return  # Cut in the middle of a line.
                        raise
                    finally:
                        number += 1
                    if not isinstance(document, dict):
                        raise RecordingError(f"{path}: line {number} is not of a recording")
                    yield document
        except OSError as error:
            raise RecordingError(f"{path}: {error.strerror or error}") from error
        except EOFError as error:
            if number:
                # What came before is whole, and is played; that there is no end is told.
                return
            raise RecordingError(f"{path}: it breaks off in its first line") from error
        except (zlib.error, ValueError, RecursionError) as error:
            if number <= 1:
                text = "it is no recording: expected what `xds-server record` wrote"
                raise RecordingError(f"{path}: {text}") from error
            raise RecordingError(f"{path}: line {number} cannot be read: {error}") from error

    def _wrong(self, error: Exception) -> RecordingError:
        text = str(error) if isinstance(error, CodecError) else f"it has a damaged line: {error!r}"
        return RecordingError(f"{self.path}: {text}")


def _played(document: dict[str, Any]) -> Played:
    if "step" in document:
        inputs: tuple[Input, ...] = decode(document["inputs"])
        now = float(document["step"])
        step = Evaluated(now=now, inputs=inputs, plan=_NO_PLAN)
        return Played(step=step, digest=str(document["digest"]))
    if "requests" in document:
        counts = {str(key): float(value) for key, value in document["counts"].items()}
        model = ModelName(str(document["model"]))
        return Played(step=Saw(now=float(document["requests"]), model=model, counts=counts))  # type: ignore[arg-type]
    now = float(document["config"])
    topology, policy = decode(document["topology"]), decode(document["policy"])
    return Played(step=Reconfigured(now=now, topology=topology, policy=policy))


_NO_PLAN = Plan(models=(), next_deadline=None)
"""The plan itself is not recorded: it follows from the rest."""

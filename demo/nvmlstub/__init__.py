"""A GPU driver without a GPU: builds and steers the stub of NVML that tests and the demo load.

The library is found by `LD_LIBRARY_PATH`, which must be set before a process starts, so the stub is for
subprocesses. `nvmlstub.c` describes the state file; `StubState` writes it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from pathlib import Path

__all__ = ["SOURCE", "StubBuildError", "StubState", "build", "environment", "read_calls"]

SOURCE = Path(__file__).with_name("nvmlstub.c")
"""The one source file; needs a C compiler and nothing else."""

_LIBRARY = "libnvidia-ml.so.1"
_COMPILERS = ("cc", "gcc", "clang")


class StubBuildError(RuntimeError):
    """The compiler is there but refused the stub."""


def build(directory: Path, *, old_driver: bool = False) -> Path | None:
    """Build the library into a directory.

    Args:
        directory: Where `libnvidia-ml.so.1` is written; made where it is missing.
        old_driver: Leave out the symbols that drivers before R510 lack.

    Returns:
        The library's path, or None where the machine has no C compiler.

    Raises:
        StubBuildError: The compiler that CC names is not there, or the compiler failed; the message says
            which, and what it said.
    """
    compiler = _compiler()
    if not compiler:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    library = directory / _LIBRARY
    # Built aside and renamed: another process may be loading the library at this moment.
    partial = directory / f".{_LIBRARY}.{os.getpid()}"
    flags = ["-DOLD_DRIVER"] if old_driver else []
    command = [*compiler, "-O1", "-fPIC", "-shared", "-pthread", f"-Wl,-soname,{_LIBRARY}", *flags]
    result = subprocess.run(
        [*command, "-o", str(partial), str(SOURCE)], capture_output=True, text=True, check=False
    )
    if result.returncode:
        said = result.stderr.strip() or f"exit code {result.returncode} and no word"
        raise StubBuildError(f"{compiler[0]} could not build {SOURCE.name}: {said}")
    partial.replace(library)
    return library


def _compiler() -> list[str]:
    """Return the command that CC gives (it may have words before and after), or whatever there is; empty if nothing."""
    chosen = shlex.split(os.environ.get("CC", ""))
    if not chosen:
        return [found for name in _COMPILERS if (found := shutil.which(name))][:1]
    if shutil.which(chosen[0]) is None:
        raise StubBuildError(f"There is no compiler {chosen[0]} here, which CC asks for")
    return chosen


def environment(library: Path, state: StubState, *, calls: Path | None = None) -> dict[str, str]:
    """Return the variables under which a new process finds the stub and its state.

    Args:
        library: What `build` returned.
        state: The GPUs that the process sees.
        calls: Where the stub keeps its counters, if anywhere; one file per process.
    """
    earlier = os.environ.get("LD_LIBRARY_PATH")
    search = f"{library.parent}:{earlier}" if earlier else str(library.parent)
    variables = {"LD_LIBRARY_PATH": search, "NVMLSTUB_STATE": str(state.path)}
    return variables | ({"NVMLSTUB_CALLS": str(calls)} if calls is not None else {})


def read_calls(path: Path) -> dict[str, int]:
    """Return the stub's counters by name ("nvmlInitWithFlags", "refcount", ...); empty before a call."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="ascii").replace("\0", "").splitlines()
    return {name.strip(): int(count) for name, _, count in (line.rpartition(" ") for line in lines)}


class StubState:
    """The GPUs that the stub shows; every change is visible to the next call of a running process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._values: dict[str, str] = {}
        self._events = 0
        self._stamp = 0
        self._write()

    def set(self, key: str, value: object | None) -> None:
        """Set one key, or take it away with None."""
        self.update({key: value})

    def update(self, values: dict[str, object | None]) -> None:
        """Set or take away several keys in one step."""
        for key, value in values.items():
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = str(value)
        self._write()

    def gpu(self, index: int, **fields: object | None) -> None:
        """Set fields of a GPU ("used", "util", "mig3.uuid" by `update`), listing it where it is new."""
        listed = max(int(self._values.get("count", 0)), index + 1)
        self.update({"count": listed} | {f"gpu{index}.{name}": v for name, v in fields.items()})

    def fail(self, index: int, status: int | None, *, function: str | None = None) -> None:
        """Make a GPU's calls (or one function on it) answer an NVML status; None heals it."""
        self.set(f"gpu{index}.err" + (f".{function}" if function else ""), status)

    def xid(self, index: int, xid: int, *, gpu_instance: int | None = None) -> None:
        """Raise an XID on a GPU: everyone waiting at this moment hears it once."""
        self._events += 1
        place = "" if gpu_instance is None else f":{gpu_instance}:0"
        self.set(f"event.{self._events}", f"{index}:{xid}{place}")

    def _write(self) -> None:
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        partial.write_text("".join(f"{k} {v}\n" for k, v in self._values.items()), encoding="ascii")
        # A modification time of its own for every change, whatever the file system's clock resolves.
        self._stamp = max(time.time_ns(), self._stamp + 1)
        os.utime(partial, ns=(self._stamp, self._stamp))
        partial.replace(self.path)

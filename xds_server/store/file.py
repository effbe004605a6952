"""The SQLite file: opened, written in batches, read, kept small. Blocks; for threads other than the loop's.

A commit is in the kernel's hands when it returns (WAL, `synchronous=NORMAL`): it survives the end of the
process however it ends; a power cut may take the last moments and never the file.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from xds_server.store.row import COLUMNS, Columns, Query, Row, from_columns
from xds_server.store.schema import UnusableFileError, prepare

BUSY_S = 2.0
"""How long another process that has the file (a backup, a second server) is waited for."""
WAL_BYTES = 4 * 1024 * 1024
"""The write-ahead log is cut to this after each checkpoint."""
TAKEN = 2000
"""Rows deleted in one transaction: few enough that nobody waits."""
KEPT_BROKEN = 2
"""Files moved aside that are kept; older ones are deleted."""
_SIDES = ("", "-wal", "-shm")
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def is_broken(error: Exception) -> bool:
    """Whether the content of the file is the trouble, rather than the disk or who may write."""
    if isinstance(error, UnusableFileError):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _BROKEN


class HistoryFile:
    """One open file."""

    def __init__(self, path: Path) -> None:
        """Open or make it.

        Raises:
            UnusableFileError: It is not one of ours, or of a newer version.
            sqlite3.Error: It cannot be opened or written.
            OSError: The folder cannot be made.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        # It names people and machines; SQLite gives its other files the same mode.
        path.touch(mode=0o600)
        self._connection = sqlite3.connect(
            path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            prepare(self._connection)
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
            self._inode = path.stat().st_ino
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Close it; what was committed stays."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()

    @property
    def is_there(self) -> bool:
        """Whether the file under this path is still the one that is written to."""
        try:
            return self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def check(self) -> None:
        """Look through the whole file.

        Raises:
            UnusableFileError: It is damaged.
            sqlite3.Error: It is damaged, or cannot be read.
        """
        (found,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise UnusableFileError(f"it is damaged: {' '.join(found.split())}")

    def append(self, rows: Sequence[Columns]) -> None:
        """Write rows, as `to_columns` gives them, all or none.

        Raises:
            sqlite3.Error: The disk did not take them.
        """
        if not rows:
            return
        marks = ", ".join("?" * len(COLUMNS))
        with self._transaction():
            self._connection.executemany(
                f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES ({marks})",  # noqa: S608 - constants
                rows,
            )

    def size_bytes(self) -> int:
        """Return what the rows take, without the free pages that the file may still have."""
        pages, free, page = (
            int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page

    def trim(self, *, before_unix_s: float, max_bytes: int) -> int:
        """Delete what is too old, and the oldest of what is too much; return how many rows.

        Raises:
            sqlite3.Error: The disk did not let it.
        """
        total = 0
        while taken := self._delete("WHERE at_us < ?", round(before_unix_s * 1e6)):
            total += taken
        while self.size_bytes() > max_bytes and (taken := self._delete("")):
            total += taken
        if total:
            # `execute` takes one step of it, and each step gives back one page; a script runs to its end.
            self._connection.executescript("PRAGMA incremental_vacuum")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return total

    def _delete(self, condition: str, *values: int) -> int:
        with self._transaction():
            done = self._connection.execute(
                f"DELETE FROM events WHERE id IN "  # noqa: S608 - the condition is one of two above
                f"(SELECT id FROM events {condition} ORDER BY id LIMIT {TAKEN})",
                values,
            )
        return done.rowcount

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise


def read(path: Path, query: Query) -> list[Row]:
    """Return the rows asked for, in the order in which they happened; none if there is no file.

    Raises:
        sqlite3.Error: The file cannot be read.
        ValueError: A row is not what was written.
    """
    where, values = _conditions(query)
    order = "ASC" if query.oldest_first else "DESC"
    statement = (
        f"SELECT {', '.join(COLUMNS)} FROM events {where} ORDER BY id {order} LIMIT {query.limit:d}"  # noqa: S608
    )
    with _table(path) as connection:
        if connection is None:
            return []
        rows = [from_columns(each) for each in connection.execute(statement, values)]
    return rows if query.oldest_first else rows[::-1]


def read_one(path: Path, number: int) -> Row | None:
    """Return the row of that number.

    Raises:
        sqlite3.Error: The file cannot be read.
        ValueError: The row is not what was written.
    """
    found = read(path, Query(after=number - 1, limit=1, oldest_first=True))
    return found[0] if found and found[0].id == number else None


def knows(path: Path, column: str, value: str) -> bool:
    """Whether any row has this value in one of the columns `TEXTS` or `name`.

    Raises:
        sqlite3.Error: The file cannot be read.
    """
    assert column in COLUMNS
    with _table(path) as connection:
        if connection is None:
            return False
        statement = f"SELECT 1 FROM events WHERE {column} = ? LIMIT 1"  # noqa: S608 - a known column
        return connection.execute(statement, (value,)).fetchone() is not None


@contextlib.contextmanager
def _table(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Open the file for reading; None where there is no file, or one that is just being made."""
    if not path.exists():
        yield None
        return
    uri = f"{path.absolute().as_uri()}?mode=ro"
    with contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as connection:
        connection.execute("PRAGMA query_only = 1")
        made = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'events'").fetchone()
        yield connection if made else None


def _conditions(query: Query) -> tuple[str, list[Any]]:
    parts: list[str] = []
    values: list[Any] = []

    def add(part: str, *given: Any) -> None:
        parts.append(part)
        values.extend(given)

    for column in ("model", "tier", "instance", "proxy", "name"):
        if wanted := getattr(query, column):
            add(f"{column} = ?", wanted)
    if query.kinds:
        add(f"kind IN ({', '.join('?' * len(query.kinds))})", *(each.value for each in query.kinds))
    if query.since_unix_s is not None:
        add("at_us >= ?", round(query.since_unix_s * 1e6))
    if query.until_unix_s is not None:
        add("at_us <= ?", round(query.until_unix_s * 1e6))
    if query.after is not None:
        add("id > ?", query.after)
    return (f"WHERE {' AND '.join(parts)}" if parts else ""), values


def move_aside(path: Path) -> Path:
    """Rename a file that cannot be used, and what belongs to it; return its new name.

    Raises:
        OSError: The folder does not let it.
    """
    aside = path.with_name(f"{path.name}.broken-{time.time_ns() // 1_000_000}")
    for side in _SIDES[::-1]:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + side).rename(aside.with_name(aside.name + side))
    older = sorted(
        each
        for each in path.parent.glob(f"{path.name}.broken-*")
        if not each.name.endswith(("-wal", "-shm"))
    )
    for each in older[:-KEPT_BROKEN]:
        for side in _SIDES:
            with contextlib.suppress(OSError):
                each.with_name(each.name + side).unlink()
    return aside

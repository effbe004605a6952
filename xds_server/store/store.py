"""The event store: rows go in from the event loop at once, and to disk in a thread of its own.

Nothing here blocks or fails for who adds a row. While the disk does not take rows they wait in memory, up to
a bound; the oldest are given up first, and how many is told. A file whose content is broken is moved aside and
a new one begun.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from xds_server import logs
from xds_server.store import file as files
from xds_server.store.file import HistoryFile
from xds_server.store.row import Columns, Kind, Query, Row, to_columns
from xds_server.store.schema import UnusableFileError

BATCH_S = 0.03
"""Rows of this time are one commit: what a killed process may lose."""
MOST_WAITING = 20_000
"""Rows that wait in memory for the disk."""
MOST_IN_BATCH = 2000
RETRY_S = 1.0
TRIM_S = 60.0
TRIM_ROWS = 5000
"""Too much and too old is looked for after this time or this many rows, whatever comes first."""
CLOSE_S = 3.0
"""How long the end of the process waits for the disk."""

_Errors = (sqlite3.Error, OSError, UnusableFileError)


class StoreError(Exception):
    """The history cannot be read; the text is one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """What is kept."""

    keep_s: float
    max_bytes: int


class EventStore:
    """The history of one control plane."""

    def __init__(
        self, path: Path, retention: Retention, *, wall: Callable[[], float] = time.time
    ) -> None:
        self.path = path
        self.trouble = ""
        """Why rows do not reach the disk; empty = they do."""
        self._retention = retention
        self._wall = wall
        self._waiting: deque[Row] = deque()
        self._lock = threading.Condition()
        self._is_closing = False
        self._is_doubted = False
        self._lost = 0
        self._written = 0
        self._given_up = 0
        self._refused = 0
        self._failed = 0
        self._moved = 0
        self._size_bytes = 0
        self._file: HistoryFile | None = None
        self._next_trim = 0.0
        self._untrimmed = 0
        self._thread = threading.Thread(target=self._run, name="event-store", daemon=True)
        self._log = logs.get("store")

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def add(self, row: Row) -> None:
        """Take a row in; never blocks on the disk and never raises."""
        with self._lock:
            self._waiting.append(row)
            if len(self._waiting) > MOST_WAITING:
                self._waiting.popleft()
                self._lost += 1
                self._given_up += 1
            self._lock.notify()

    def close(self) -> None:
        """Write what waits, as far as the disk takes it in a moment, and end the thread."""
        with self._lock:
            self._is_closing = True
            self._lock.notify()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def read(self, query: Query) -> list[Row]:
        """Return the rows asked for, the ones that wait for the disk included. Blocks on the disk.

        Raises:
            StoreError: The file cannot be read.
        """
        waiting = [row for row in self._copy() if query.fits(row)]
        try:
            rows = files.read(self.path, query)
        except (sqlite3.Error, OSError, ValueError) as error:
            if not self.trouble:
                raise self._unreadable(error) from error
            rows = []  # What waits in memory is better than nothing; `trouble` says the rest.
        # What was written between the two looks is in both.
        known = {row.key for row in rows} if waiting else set()
        rows += [row for row in waiting if row.key not in known]
        return rows[: query.limit] if query.oldest_first else rows[-query.limit :]

    def read_one(self, number: int) -> Row | None:
        """Return the row of that number. Blocks on the disk.

        Raises:
            StoreError: The file cannot be read.
        """
        try:
            return files.read_one(self.path, number)
        except (sqlite3.Error, OSError, ValueError) as error:
            raise self._unreadable(error) from error

    def knows(self, column: str, value: str) -> bool:
        """Whether any row, on disk or waiting, has this value. Blocks on the disk.

        Raises:
            StoreError: The file cannot be read.
        """
        if any(getattr(row, column) == value for row in self._copy()):
            return True
        try:
            return files.knows(self.path, column, value)
        except (sqlite3.Error, OSError) as error:
            raise self._unreadable(error) from error

    def _copy(self) -> list[Row]:
        """Return what waits; whoever adds a row waits no longer than this takes."""
        with self._lock:
            return list(self._waiting)

    def _unreadable(self, error: Exception) -> StoreError:
        """Have the writer look as well: with what it remembers of the file it may not have noticed."""
        if files.is_broken(error):
            with self._lock:
                self._is_doubted = True
                self._lock.notify()
        return StoreError(f"the history cannot be read: {error}")

    def readings(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield the metrics of the store."""
        yield "fleet_store_rows_total", ("written",), float(self._written)
        yield "fleet_store_rows_total", ("lost",), float(self._given_up + self._refused)
        yield "fleet_store_failures_total", (), float(self._failed)
        yield "fleet_store_files_moved_aside_total", (), float(self._moved)
        yield "fleet_store_rows_waiting", (), float(len(self._waiting))
        yield "fleet_store_failing", (), float(bool(self.trouble))
        yield "fleet_store_size_bytes", (), float(self._size_bytes)

    # On the thread.

    def _run(self) -> None:
        while True:
            with self._lock:
                if not (self._waiting or self._is_closing or self._is_doubted):
                    self._lock.wait(TRIM_S)
                is_closing = self._is_closing
            if not is_closing:
                time.sleep(BATCH_S)
            is_written = self._step()
            with self._lock:
                if self._is_closing and (not self._waiting or not is_written):
                    break
                if not is_written:
                    self._lock.wait_for(lambda: self._is_closing, RETRY_S)
        if self._file is not None:
            self._file.close()
            self._file = None

    def _step(self) -> bool:
        """Write a batch and trim; return whether the disk took it."""
        try:
            file = self._opened()
            self._write(file)
            self._trim(file)
        except _Errors as error:
            self._fail(error)
            return False
        except Exception as error:  # noqa: BLE001 - the thread lives as long as the process
            self._fail(error)
            return False
        self._recover()
        return True

    def _opened(self) -> HistoryFile:
        if self._file is not None and not self._file.is_there:
            self._file.close()
            self._file = None
            self._begun_anew("it was deleted while in use")
        if self._is_doubted and self._file is not None:
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = HistoryFile(self.path)
            self._next_trim = 0.0
        if self._is_doubted:
            self._is_doubted = False
            self._file.check()
        return self._file

    def _write(self, file: HistoryFile) -> None:
        with self._lock:
            count = min(len(self._waiting), MOST_IN_BATCH)
            rows = list(islice(self._waiting, count))
            given_up = self._given_up
            lost, self._lost = self._lost, 0
        if lost:
            rows.insert(
                0, self._trouble_row("events_lost", f"{lost} events found no place in memory.")
            )
        try:
            columns = list(self._columns(rows))
            file.append(columns)
        except BaseException:
            with self._lock:
                self._lost += lost
            raise
        with self._lock:
            # What was given up meanwhile is gone from the front already, though it was written.
            gone = min(count, self._given_up - given_up)
            self._lost -= gone
            self._given_up -= gone
            for _ in range(count - gone):
                self._waiting.popleft()
        self._written += len(columns)
        self._untrimmed += len(columns)

    def _columns(self, rows: Iterable[Row]) -> Iterator[Columns]:
        for row in rows:
            try:
                yield to_columns(row)
            except Exception as error:  # noqa: BLE001 - one bad row must not keep the others from the disk
                self._refused += 1
                self._log.warning(logs.STORE_ROW_REFUSED, row=repr(row)[:500], reason=repr(error))

    def _trim(self, file: HistoryFile) -> None:
        now = time.monotonic()
        if now < self._next_trim and self._untrimmed < TRIM_ROWS:
            return
        self._next_trim, self._untrimmed = now + TRIM_S, 0
        file.trim(
            before_unix_s=self._wall() - self._retention.keep_s,
            max_bytes=self._retention.max_bytes,
        )
        self._size_bytes = file.size_bytes()

    def _fail(self, error: Exception) -> None:
        self._failed += 1
        if self._file is not None:
            self._file.close()
            self._file = None
        if files.is_broken(error):
            try:
                aside = files.move_aside(self.path)
            except OSError as other:
                error = other
            else:
                self._begun_anew(f"{error}; the old file is now {aside.name}")
                return
        if not self.trouble:
            self._log.warning(
                logs.STORE_WRITE_FAILED,
                file=str(self.path),
                reason=str(error),
                note="decisions go on",
            )
        self.trouble = str(error)

    def _recover(self) -> None:
        if not self.trouble:
            return
        self._log.info(logs.STORE_WRITE_RECOVERED, file=str(self.path))
        self.add(
            self._trouble_row(
                "store_write_recovered", f"Events are written again ({self.trouble})."
            )
        )
        self.trouble = ""

    def _begun_anew(self, reason: str) -> None:
        self._moved += 1
        self._log.warning(logs.STORE_BEGUN_ANEW, file=str(self.path), reason=reason)
        self.add(self._trouble_row("store_begun_anew", f"The history begins here: {reason}."))

    def _trouble_row(self, name: str, text: str) -> Row:
        return Row(at_unix_s=self._wall(), kind=Kind.STORE, name=name, text=text)

"""The tables of the file, version by version.

`PRAGMA user_version` is the number of steps a file has taken. A step that was released is never
changed: a newer one follows it. `PRAGMA application_id` tells our files from other people's.
"""

from __future__ import annotations

import sqlite3

APPLICATION_ID = 0x67787376
"""`gxsv` in ASCII."""

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE events (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        at_us INTEGER NOT NULL,
        kind TEXT NOT NULL,
        name TEXT NOT NULL,
        model TEXT NOT NULL,
        tier TEXT NOT NULL,
        instance TEXT NOT NULL,
        proxy TEXT NOT NULL,
        who TEXT NOT NULL,
        why TEXT NOT NULL,
        before TEXT NOT NULL,
        after TEXT NOT NULL,
        rule TEXT NOT NULL,
        text TEXT NOT NULL,
        data TEXT NOT NULL
    );
    CREATE INDEX events_at ON events (at_us);
    CREATE INDEX events_model ON events (model, id);
    CREATE INDEX events_instance ON events (instance, id) WHERE instance != '';
    CREATE INDEX events_kind ON events (kind, id);
    """,
)


class UnusableFileError(Exception):
    """The file is not a history that this version can go on with; the text says why."""


def prepare(connection: sqlite3.Connection) -> None:
    """Bring a file, new or old, to the newest version.

    Raises:
        UnusableFileError: It is another program's, or of a newer version.
        sqlite3.Error: It cannot be read or written.
    """
    version = _pragma(connection, "user_version")
    owner = _pragma(connection, "application_id")
    is_new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if not is_new and owner != APPLICATION_ID:
        raise UnusableFileError("it is the database of another program")
    if version > len(STEPS):
        raise UnusableFileError(f"it has version {version}; this program knows {len(STEPS)}")
    if is_new:
        # Both only take effect while the file is empty.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute("PRAGMA journal_mode = WAL")
    for number, step in enumerate(STEPS[version:], start=version + 1):
        connection.executescript(f"BEGIN;{step};PRAGMA user_version = {number};COMMIT;")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])

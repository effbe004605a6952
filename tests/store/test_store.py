"""The event store: what goes in comes out, whatever the disk does meanwhile."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.fakes.waiting import PATIENCE_S
from xds_server.store import file as files
from xds_server.store import schema
from xds_server.store import store as module
from xds_server.store.file import HistoryFile
from xds_server.store.row import (
    TEXTS,
    Kind,
    Query,
    Row,
    from_columns,
    to_columns,
)
from xds_server.store.schema import UnusableFileError
from xds_server.store.store import EventStore, Retention, StoreError

KEEP = Retention(keep_s=3600.0, max_bytes=2**24)


def row(name: str = "instance_down", at: float = 1000.0, **fields) -> Row:
    return Row(**{"at_unix_s": at, "kind": Kind.DECISION, "name": name} | fields)


@contextmanager
def running(path: Path, retention: Retention = KEEP, wall=lambda: 1000.0):
    store = EventStore(path, retention, wall=wall)
    store.start()
    try:
        yield store
    finally:
        store.close()


def until(condition, timeout_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def metric(store: EventStore, name: str, *labels: str) -> float:
    return {(each, found): value for each, found, value in store.readings()}[name, labels]


def names(store: EventStore, **query) -> list[str]:
    return [each.name for each in store.read(Query(**query))]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "state" / "events.db"


def test_rows_are_there_at_once_and_after_a_restart(path):
    full = row(**{key: f"the {key}" for key in TEXTS}, data={"inputs": {"kv": 0.93, "state": "up"}})
    with running(path) as store:
        store.add(full)
        assert [each.text for each in store.read(Query())] == ["the text"]
        until(lambda: metric(store, "fleet_store_rows_total", "written") == 1)
    with running(path) as store:
        (found,) = store.read(Query())
        assert found.id == 1
        assert {**found.document(), "id": None} == full.document()
        assert store.read_one(1) == found
        assert store.read_one(2) is None
        assert store.trouble == ""


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param({}, "abcdef", id="everything"),
        pytest.param({"model": "chat"}, "abc", id="model"),
        pytest.param({"model": "chat", "tier": "primary"}, "ab", id="tier"),
        pytest.param({"instance": "i"}, "a", id="instance"),
        pytest.param({"proxy": "edge"}, "e", id="proxy"),
        pytest.param({"name": "d"}, "d", id="name"),
        pytest.param({"kinds": (Kind.PROXY, Kind.CONFIG)}, "de", id="kinds"),
        pytest.param({"since_unix_s": 3.0}, "cdef", id="since"),
        pytest.param({"until_unix_s": 3.0}, "abc", id="until"),
        pytest.param({"limit": 2}, "ef", id="newest"),
        pytest.param({"limit": 2, "oldest_first": True}, "ab", id="oldest"),
        pytest.param({"after": 4}, "ef", id="after"),
    ],
)
@pytest.mark.parametrize("is_on_disk", [True, False], ids=["disk", "memory"])
def test_a_query_gives_what_it_asks_for_in_order(path, query, expected, is_on_disk):
    rows = [
        row("a", 1.0, model="chat", tier="primary", instance="i"),
        row("b", 2.0, model="chat", tier="primary"),
        row("c", 3.0, model="chat", tier="static"),
        row("d", 4.0, kind=Kind.CONFIG),
        row("e", 5.0, kind=Kind.PROXY, proxy="edge"),
        row("f", 6.0, kind=Kind.PROCESS),
    ]
    store = EventStore(path, KEEP, wall=lambda: 6.0)
    for each in rows:
        store.add(each)
    if is_on_disk:
        store.start()
        store.close()
    elif "after" in query:
        expected = ""  # Who follows gets them once they have a number.
    assert "".join(names(store, **query)) == expected


@given(text=st.text(st.characters(codec=None)), at=st.floats(0, 4e9), number=st.integers(1))
def test_whatever_text_comes_it_is_stored(text, at, number):
    before = row("x", at, id=number, text=text, proxy=text, data={"k": text})
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(schema.STEPS[0])
        values = (1, *to_columns(before)[1:])
        connection.execute(f"INSERT INTO events VALUES ({','.join('?' * len(values))})", values)
        (found,) = connection.execute("SELECT * FROM events").fetchall()
    after = from_columns(found)
    assert after.at_unix_s == pytest.approx(at, abs=1e-5)
    assert after.text == text.encode("utf-8", "replace").decode()


def test_a_row_that_cannot_be_written_keeps_no_other_from_the_disk(path):
    circle: dict = {}
    circle["self"] = circle
    with capture_logs() as lines, running(path) as store:
        store.add(row("good"))
        store.add(row("bad", data=circle))
        store.add(row("better"))
        until(lambda: metric(store, "fleet_store_rows_total", "written") == 2)
    assert names(store) == ["good", "better"]
    assert metric(store, "fleet_store_rows_total", "lost") == 1
    assert [each["event"] for each in lines] == ["store_row_refused"]


# Trouble.


def _newer(path: Path) -> None:
    HistoryFile(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def _other(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE photos (id)")


def _spoil(path: Path) -> None:
    with closing(HistoryFile(path)) as file:
        file.append([to_columns(row(text="x" * 100)) for _ in range(500)])
    with path.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xaa" * (path.stat().st_size - 4096))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        pytest.param(lambda path: path.write_bytes(b"garbage" * 999), "not a database", id="bytes"),
        pytest.param(_spoil, "malformed", id="corrupt"),
        pytest.param(_other, "another program", id="other"),
        pytest.param(_newer, "has version 99", id="newer"),
    ],
)
def test_a_broken_file_is_moved_aside_and_a_new_one_begun(path, make, reason):
    path.parent.mkdir()
    make(path)
    content = path.read_bytes()
    with capture_logs() as lines, running(path) as store:
        store.add(row("first"))
        until(lambda: metric(store, "fleet_store_rows_total", "written") == 2)
    assert set(names(store)) == {"first", "store_begun_anew"}
    (anew,) = [each for each in lines if each["event"] == "store_begun_anew"]
    assert reason in anew["reason"]
    (aside,) = path.parent.glob("events.db.broken-*[0-9]")
    assert aside.read_bytes() == content
    assert aside.name in anew["reason"]
    assert metric(store, "fleet_store_files_moved_aside_total") == 1


def test_only_the_newest_broken_files_are_kept(path):
    path.parent.mkdir()
    for number in range(4):
        path.write_text(f"{number}")
        files.move_aside(path)
        time.sleep(0.002)  # Their names are the time in milliseconds.
    kept = sorted(path.parent.iterdir())
    assert [each.read_text() for each in kept] == ["2", "3"]


def test_a_file_that_breaks_while_it_is_used_is_replaced(path):
    with running(path) as store:
        store.add(row("before"))
        until(lambda: metric(store, "fleet_store_rows_total", "written") == 1)
        path.with_name("events.db-wal").write_bytes(b"")
        path.write_bytes(b"\xff" * 65536)
        store.add(row("after"))
        until(lambda: metric(store, "fleet_store_rows_waiting") == 0)
        with pytest.raises(StoreError, match="not a database"):
            store.read(Query())
        until(lambda: metric(store, "fleet_store_files_moved_aside_total") == 1)
        until(lambda: metric(store, "fleet_store_rows_waiting") == 0)
    assert names(store) == ["store_begun_anew"]


def test_damage_that_only_reading_finds_leads_to_a_new_file(path):
    with running(path) as store:
        for number in range(2000):
            store.add(row(f"e{number}", text="x" * 100))
        until(lambda: metric(store, "fleet_store_rows_total", "written") == 2000)
    size = path.stat().st_size
    with path.open("r+b") as raw:
        raw.seek(size // 2)
        raw.write(b"\xaa" * (size // 4))
    with running(path) as store:
        store.add(row("after"))
        until(lambda: metric(store, "fleet_store_rows_waiting") == 0)
        if not metric(store, "fleet_store_files_moved_aside_total"):
            with pytest.raises(StoreError):
                store.read(Query(limit=5000))
        until(lambda: metric(store, "fleet_store_files_moved_aside_total") == 1)
        until(lambda: metric(store, "fleet_store_rows_waiting") == 0)
    assert "store_begun_anew" in names(store)


def test_a_file_that_is_deleted_under_it_is_made_again(path):
    with running(path) as store:
        store.add(row("before"))
        until(lambda: metric(store, "fleet_store_rows_total", "written") == 1)
        for each in path.parent.iterdir():
            each.unlink()
        store.add(row("after"))
        until(lambda: metric(store, "fleet_store_rows_waiting") == 0 and path.exists())
    assert set(names(store)) == {"after", "store_begun_anew"}


def test_while_the_disk_takes_nothing_events_wait_in_memory(path, monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0.02)
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    path.parent.write_text("a file where the folder should be")
    with capture_logs() as lines, running(path) as store:
        for number in range(8):
            store.add(row(f"e{number}"))
        until(lambda: store.trouble)
        until(lambda: metric(store, "fleet_store_failures_total") >= 2)
        assert names(store) == ["e3", "e4", "e5", "e6", "e7"]
        assert metric(store, "fleet_store_failing") == 1
        path.parent.unlink()
        until(lambda: not store.trouble and not metric(store, "fleet_store_rows_waiting"))
    assert names(store) == ["events_lost", "e3", "e4", "e5", "e6", "e7", "store_write_recovered"]
    assert store.read(Query())[0].text == "3 events found no place in memory."
    assert metric(store, "fleet_store_rows_total", "lost") == 3
    assert [each["event"] for each in lines] == ["store_write_failed", "store_write_recovered"]


def test_a_disk_that_never_takes_anything_does_not_keep_the_process_from_ending(path):
    path.parent.write_text("in the way")
    store = EventStore(path, KEEP)
    store.start()
    store.add(row())
    began = time.monotonic()
    store.close()
    assert time.monotonic() - began < module.CLOSE_S, "it is not waited for"
    assert names(store) == ["instance_down"]


def test_a_history_that_cannot_be_read_is_told(path):
    path.parent.mkdir()
    path.write_bytes(b"garbage" * 999)
    store = EventStore(path, KEEP)
    for ask in (
        lambda: store.read(Query()),
        lambda: store.read_one(1),
        lambda: store.knows("model", "chat"),
    ):
        with pytest.raises(StoreError, match="not a database"):
            ask()


def test_only_its_owner_may_read_the_file(path):
    with running(path) as store:
        store.add(row())
        until(lambda: metric(store, "fleet_store_rows_total", "written") == 1)
        modes = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}


def test_names_are_known_from_disk_and_from_memory(path):
    store = EventStore(path, KEEP, wall=lambda: 1000.0)
    assert not store.knows("model", "chat")
    store.add(row(model="chat"))
    assert store.knows("model", "chat")
    store.start()
    store.close()
    assert store.knows("model", "chat")
    assert not store.knows("model", "other")


# Retention and versions.


def test_what_is_too_old_is_deleted(path):
    with running(path) as store:
        for number in range(10):
            store.add(row(f"e{number}", at=number * 1000.0))
    with running(path, Retention(keep_s=3000.0, max_bytes=2**24), lambda: 9000.0) as store:
        store.add(row("now", at=9000.0))
    assert names(store) == ["e6", "e7", "e8", "e9", "now"]


def test_a_history_that_is_too_large_loses_its_oldest_events_and_the_file_shrinks(path):
    limit = 2**20
    with closing(HistoryFile(path)) as file:
        for start in range(0, 20_000, 1000):
            rows = [row(f"e{start + n}", text="x" * 200) for n in range(1000)]
            file.append([to_columns(each) for each in rows])
        assert file.size_bytes() > 4 * limit
        assert file.trim(before_unix_s=0.0, max_bytes=limit) > 10_000
        assert file.size_bytes() <= limit
    assert path.stat().st_size <= limit
    assert names(EventStore(path, KEEP), limit=1) == ["e19999"]


def test_an_older_file_is_brought_up_to_date(path, monkeypatch):
    with closing(HistoryFile(path)) as file:
        file.append([to_columns(row("old"))])
    newer = (*schema.STEPS, "CREATE INDEX events_name ON events (name, id);")
    monkeypatch.setattr(schema, "STEPS", newer)
    HistoryFile(path).close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE name = 'events_name'"
        ).fetchone() == (1,)
    assert names(EventStore(path, KEEP)) == ["old"]


def test_a_migration_that_fails_leaves_the_file_as_it_was(path, monkeypatch):
    HistoryFile(path).close()
    monkeypatch.setattr(
        schema, "STEPS", (*schema.STEPS, "CREATE TABLE other (id); SELECT nonsense;")
    )
    with pytest.raises(sqlite3.Error, match="nonsense"):
        HistoryFile(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'other'").fetchall()


def test_two_servers_on_one_file_lose_nothing(path):
    with running(path) as one, running(path) as two:
        for number in range(50):
            one.add(row(f"one{number}"))
            two.add(row(f"two{number}"))
    assert len(names(one, limit=1000)) == 100


def test_adding_is_quick(path):
    with running(path) as store:
        began = time.perf_counter()
        for _ in range(2000):
            store.add(row())
        took_s = time.perf_counter() - began
    assert took_s < 10.0, "it waits for the disk"  # 5 us each on an idle machine.
    assert len(names(store, limit=5000)) == 2000


def test_errors_are_told_apart():
    assert files.is_broken(UnusableFileError("x"))
    assert not files.is_broken(OSError(os.strerror(28)))
    assert not files.is_broken(sqlite3.OperationalError("database or disk is full"))


def test_a_file_that_is_just_being_made_has_no_rows_and_is_no_trouble(path):
    path.parent.mkdir()
    path.touch()
    assert files.read(path, Query()) == []
    assert files.read_one(path, 1) is None
    assert files.knows(path, "name", "x") is False

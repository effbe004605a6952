from __future__ import annotations

import errno
import json
import os

import pytest

from xds_server.core.model import Instance, InstanceId, ModelName, TierName
from xds_server.loop.state_file import StateError, StateFile, dump_registered, load_registered
from xds_server.registered import Registered

ENTRY = Registered(
    model=ModelName("chat"),
    tier=TierName("primary"),
    instance=Instance(id=InstanceId("n"), host="10.0.0.9", port=80, capacity=None),
)


def test_what_was_written_is_read(tmp_path):
    file = StateFile(tmp_path / "deep" / "er")
    assert file.read() is None
    file.write({"brain": {"x": 1}})
    file.write({"brain": {"x": 2}})
    data = file.read()
    assert data is not None
    assert data["brain"] == {"x": 2}
    assert list(file.path.parent.iterdir()) == [file.path]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"brain": {}}, id="empty"),
        pytest.param({"brain": None, "registered": [{"a": {"b": 1}}]}, id="no brain"),
        pytest.param({"brain": {"v": 1, "models": {"m": {"t": {}}, 'q"': [1]}}}, id="models"),
    ],
)
def test_what_is_encoded_in_pieces_is_the_same_as_in_one(tmp_path, data):
    file = StateFile(tmp_path)
    file.write(data)
    assert file.read() == {"format": 1, **data}
    assert file.path.read_text() == json.dumps({"format": 1, **data}, separators=(",", ":"))


def test_a_function_stands_for_what_it_returns(tmp_path):
    file = StateFile(tmp_path)
    file.write({"brain": {"models": {"m": lambda: {"x": 1}}}})
    data = file.read()
    assert data is not None
    assert data["brain"] == {"models": {"m": {"x": 1}}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"{half", "is not JSON", id="half"),
        pytest.param(b"\xff", "cannot be read", id="binary"),
        pytest.param(b"[]", "has format 'list'", id="list"),
        pytest.param(b'{"format": 99}', "has format 99; this version reads 1", id="newer"),
    ],
)
def test_a_file_that_is_not_ours_is_an_error_with_its_reason(tmp_path, content, reason):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(StateError, match=reason):
        StateFile(tmp_path).read()


def test_a_directory_in_its_place_is_an_error(tmp_path):
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(StateError, match="cannot be read"):
        StateFile(tmp_path).read()


def test_a_full_disk_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    file = StateFile(tmp_path)
    file.write({"brain": 1})

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        file.write({"brain": 2})
    assert list(tmp_path.iterdir()) == [file.path]
    data = file.read()
    assert data is not None
    assert data["brain"] == 1


def test_registered_instances_survive_as_json():
    rows = json.loads(json.dumps(dump_registered([ENTRY])))
    assert load_registered(rows) == [ENTRY]


@pytest.mark.parametrize("rows", [7, [7], [{}], [{"model": "m"}], None])
def test_broken_registrations_are_an_error(rows):
    with pytest.raises(StateError, match="broken registered"):
        load_registered(rows)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("host", 7, id="a number for an address"),
        pytest.param("host", "engine", id="a host name"),
        pytest.param("host", "0.0.0.0", id="no address to connect to"),
        pytest.param("port", 70_000, id="no port"),
        pytest.param("port", None, id="nothing for a port"),
        pytest.param("capacity", "many", id="a text for a capacity"),
        pytest.param("capacity", -1, id="less than nothing"),
        pytest.param("name", ["n"], id="a list for a name"),
    ],
)
def test_a_registration_that_no_agent_could_have_made_is_an_error(key, value):
    (row,) = dump_registered([ENTRY])
    with pytest.raises(StateError, match="broken registered"):
        load_registered([{**row, key: value}])

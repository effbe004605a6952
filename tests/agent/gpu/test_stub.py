"""The stub library itself: what tests and the demo stand on."""

from __future__ import annotations

import subprocess

import pytest

import demo.nvmlstub as stub
from demo.nvmlstub import StubBuildError, StubState, build, environment, read_calls


def test_it_lacks_the_newer_symbols_when_it_plays_an_old_driver(library, old_library):
    def has(path):
        return b"nvmlDeviceGetMemoryInfo_v2\0" in path.read_bytes()

    assert (has(library), has(old_library)) == (True, False)


def test_without_a_compiler_nothing_is_built_and_nothing_breaks(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build(tmp_path / "out") is None
    assert not (tmp_path / "out").exists()


def test_a_compiler_that_fails_is_told_with_its_own_words(library, tmp_path, monkeypatch):
    source = tmp_path / "broken.c"
    source.write_text("this is no C")
    monkeypatch.setattr(stub, "SOURCE", source)
    with pytest.raises(StubBuildError, match=r"could not build broken\.c: .*error"):
        build(tmp_path)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("no-such-compiler", "There is no compiler no-such-compiler here, which CC asks for"),
        ("false", "false could not build nvmlstub.c: exit code 1 and no word"),
    ],
)
def test_a_chosen_compiler_that_cannot_do_it_is_told_and_no_other_is_taken(
    tmp_path, monkeypatch, chosen, said
):
    monkeypatch.setenv("CC", chosen)
    with pytest.raises(StubBuildError, match=f"^{said}$"):
        build(tmp_path)


def test_a_chosen_compiler_may_have_words_before_it(library, tmp_path, monkeypatch):
    monkeypatch.setenv("CC", "env LANG=C cc")
    built = build(tmp_path / "out")
    assert built is not None
    assert built.exists()


def test_an_earlier_library_path_is_kept_behind_the_stubs(tmp_path, monkeypatch):
    state = StubState(tmp_path / "state")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    variables = environment(tmp_path / "libnvidia-ml.so.1", state)
    assert variables["LD_LIBRARY_PATH"] == f"{tmp_path}:/opt/lib"
    assert "NVMLSTUB_CALLS" not in variables


def test_every_change_of_the_state_has_a_time_of_its_own(tmp_path):
    state = StubState(tmp_path / "state")
    times = []
    for used in range(50):
        state.gpu(0, used=used)
        times.append(state.path.stat().st_mtime_ns)
    assert len(set(times)) == 50


def test_what_is_taken_away_is_gone_from_the_state(tmp_path):
    state = StubState(tmp_path / "state")
    state.gpu(1, uuid="GPU-b", used=5)
    state.fail(1, 15, function="nvmlDeviceGetUUID")
    state.fail(1, None, function="nvmlDeviceGetUUID")
    state.xid(1, 79, gpu_instance=3)
    assert state.path.read_text().splitlines() == [
        "count 2",
        "gpu1.uuid GPU-b",
        "gpu1.used 5",
        "event.1 1:79:3:0",
    ]


def test_counters_are_empty_before_the_first_call(tmp_path):
    assert read_calls(tmp_path / "calls") == {}


def test_it_compiles_without_a_warning(tmp_path, library):
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-pthread", str(stub.SOURCE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stderr == ""

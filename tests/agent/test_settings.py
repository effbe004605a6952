from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar_agent.sources import Flags, SettingsError, load

GOOD = """
node: host-1
control_plane: {address: "plane:18000", token: from-file}
scrape: {interval_s: 0.25}
instances:
  - name: a100-0
    url: http://127.0.0.1:8001
    engine: vllm
    gpus: [GPU-7f1c, MIG-22aa]
    tier: primary
    model: llama-3-70b
    capacity: 40
  - {name: b, url: "https://[::1]/custom", address: "10.0.0.1:8443"}
"""


@pytest.fixture
def write(tmp_path):
    def _write(text: str) -> Path:
        path = tmp_path / "agent.yaml"
        path.write_text(text)
        return path

    return _write


def problems(path, environment=None, **flags):
    with pytest.raises(SettingsError) as caught:
        load(Flags(config=path, **flags), environment or {})
    return list(caught.value.problems)


def test_a_file_is_read(write):
    settings = load(Flags(config=write(GOOD)), {})
    assert settings.node == "host-1"
    assert settings.scrape.interval_s == 0.25
    first, second = settings.instances
    assert (first.endpoint, first.capacity) == ("127.0.0.1:8001", 40)
    assert (second.endpoint, second.engine) == ("10.0.0.1:8443", "auto")


def test_flags_win_over_the_environment_and_that_over_the_file(write):
    path = write(GOOD)
    environment = {"SIDECAR_AGENT_CONTROL_PLANE": "env:1", "SIDECAR_AGENT_TOKEN": "from-env"}
    assert load(Flags(config=path), {}).control_plane.address == ("plane:18000",)
    settings = load(Flags(config=path), environment)
    assert settings.control_plane.address == ("env:1",)
    assert settings.token() == "from-env"
    settings = load(Flags(config=path, control_plane="flag:2"), environment)
    assert settings.control_plane.address == ("flag:2",)


@pytest.mark.parametrize("text", ["'a:1,b:2'", "[a:1, 'b:2']"])
def test_there_may_be_several_control_planes(write, text):
    path = write(GOOD.replace('"plane:18000"', text))
    assert load(Flags(config=path), {}).control_plane.address == ("a:1", "b:2")


def test_the_file_can_be_named_by_the_environment(write):
    environment = {"SIDECAR_AGENT_CONFIG": str(write(GOOD))}
    assert load(Flags(), environment).node == "host-1"


def test_instances_can_be_given_as_flags_alone():
    flag = "a=http://h:1,engine=sglang,gpus=GPU-1+GPU-2,tier=primary,capacity=8"
    (one,) = load(Flags(instances=(flag,)), {"NODE_NAME": "n"}).instances
    assert (one.name, one.engine, one.gpus, one.capacity) == ("a", "sglang", ("GPU-1", "GPU-2"), 8)


def test_a_token_file_is_read_anew_each_time(tmp_path):
    file = tmp_path / "token"
    file.write_text("one\n")
    settings = load(Flags(instances=("a=http://h:1",)), {"SIDECAR_AGENT_TOKEN_FILE": str(file)})
    assert settings.token() == "one"
    file.write_text("two\n")
    assert settings.token() == "two"


@pytest.mark.parametrize(
    "content", [b"one\ntwo", b"a b", b"\xff\xfe", "schl\u00fcssel".encode(), b"a\x00b"]
)
def test_a_token_that_no_header_can_hold_is_told_with_its_file_and_not_shown(tmp_path, content):
    file = tmp_path / "token"
    file.write_bytes(content)
    settings = load(Flags(instances=("a=http://h:1",)), {"SIDECAR_AGENT_TOKEN_FILE": str(file)})
    with pytest.raises(OSError, match="expected one token of visible ASCII") as caught:
        settings.token()
    assert str(file) in str(caught.value)
    assert "one" not in str(caught.value).replace("expected one", "")
    with pytest.raises(SettingsError, match=r"control_plane\.token: found") as refused:
        load(Flags(instances=("a=http://h:1",)), {"SIDECAR_AGENT_TOKEN": "two words"})
    assert "words" not in str(refused.value)


def test_the_token_is_never_shown(write):
    settings = load(Flags(config=write(GOOD)), {})
    assert "from-file" not in str(settings.shown())
    assert "from-file" not in repr(settings)


def test_what_is_written_once_may_be_merged_in_elsewhere(write):
    path = write(
        """
instances:
  - &first {name: a, url: "http://h:1", engine: vllm}
  - {<<: *first, name: b, url: "http://h:2"}
"""
    )
    instances = load(Flags(config=path), {}).instances
    assert [(one.name, one.engine) for one in instances] == [("a", "vllm"), ("b", "vllm")]


def test_all_problems_are_told_at_once_with_path_value_and_expectation(write):
    path = write(
        """
control_plane: {adress: "x:1", address: "nowhere"}
scrape: {interval_s: -1}
gpu: {backend: cuda}
admin: 127.0.0.1:99999
instances:
  - {name: a, url: "ftp://x", engine: vlm}
  - {url: "http://h:1", gpus: ["0"], capacity: 0}
  - {name: c, url: "http://user:pw@h:1", hang_s: .nan}
"""
    )
    told = problems(path)
    for start, part in (
        ("control_plane.adress: unknown key", "'x:1'"),
        (
            "control_plane.address[0]: found 'nowhere'",
            "expected host:port, for example 127.0.0.1:18000",
        ),
        ("scrape.interval_s: found -1", "expected greater than 0"),
        ("gpu.backend: found 'cuda'", "'nvml'"),
        ("admin: found '127.0.0.1:99999'", "expected host:port, for example 127.0.0.1:9477"),
        ("instances[0].url: found 'ftp://x'", "expected an http or https URL"),
        ("instances[0].engine: found 'vlm'", "expected one of: auto, vllm"),
        ("instances[1].name: found nothing", "expected a value"),
        ("instances[1].gpus[0]: found '0'", "an index is no identity"),
        ("instances[1].capacity: found 0", "expected greater than 0"),
        ("instances[2].url: found", "without user and password"),
        ("instances[2].hang_s: found nan", "finite"),
    ):
        assert any(one.startswith(start) and part in one for one in told), (start, told)
    assert len(told) == 12


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("instances: [", "not YAML"),
        ("- 1", "found list, expected a mapping"),
        ("node: [a, b]", "node: found ['a', 'b'], expected a valid string"),
        ("node: 007", "node: found 7, expected a valid string"),
        ('node: "a\\nb"', "expected text without line breaks"),
        ("admin: 127.0.0.1:1\nadmin: 127.0.0.1:2", "key 'admin' twice in a mapping, expected once"),
        ("[" * 5000 + "]" * 5000, "not YAML: nested too deeply"),
        (
            "instances: [{name: a, url: 'http://h:1', name: b}]",
            "key 'name' twice in a mapping, expected once",
        ),
        ("instances: []", "instances: found none, expected at least one"),
        ("", "instances: found none"),
        ("instances: 3", "instances: found 3"),
        (
            "instances: [{name: a, url: 'http://h:1'}, {name: a, url: 'http://h:2'}]",
            "instances[1]: name 'a' is used twice",
        ),
        (
            "instances: [{name: a, url: 'http://h:1'}, {name: b, url: 'http://h:1/x'}]",
            "instances[1]: endpoint address 'h:1' is used twice",
        ),
        ("instances: [{name: a, url: 'http://h:1', engine: generic}]", "expected metrics"),
        (
            "instances: [{name: a, url: 'http://h:1', metrics: {kv_ratio: x}}]",
            "expected metrics only with engine: generic",
        ),
        (
            "instances: [{name: a, url: 'http://h:1', engine: generic, metrics: {kv: x}}]",
            "found ['kv']",
        ),
        (
            "instances: [{name: a, url: 'http://h:1', gpus: [GPU-1, GPU-1]}]",
            "expected every GPU once",
        ),
        (
            "{control_plane: {tls: {ca: a.pem, cert: b.pem}}, instances: [{name: a, url: 'http://h:1'}]}",
            "expected cert and key together",
        ),
        ("{control_plane: {address: '::1:80'}}", "expected brackets"),
        (
            "{control_plane: {address: 'a:1,b'}}",
            "control_plane.address[1]: found 'b', expected host:port",
        ),
        ("{control_plane: {address: [a:1, 'a:1']}}", "expected every control plane once"),
        ("{control_plane: {address: []}}", "control_plane.address"),
        ("instances: [{name: a, url: 'http://h:x'}]", "expected a URL"),
        (
            "instances: [{name: a, url: 'http://h:1', probe_url: 'h:2'}]",
            "instances[0].probe_url: found 'h:2', expected an http or https URL",
        ),
        (
            "{token_probe: {interval_s: 0.5}, instances: [{name: a, url: 'http://h:1'}]}",
            "token_probe: expected deadline_s at most interval_s (0.5)",
        ),
        (
            "{token_probe: {deadline_s: 0}, instances: [{name: a, url: 'http://h:1'}]}",
            "token_probe.deadline_s: found 0, expected greater than 0",
        ),
        (
            "instances: [{name: 'a b/..', url: 'http://h:1'}]",
            "instances[0].name: found 'a b/..', expected a name: at most 63 letters",
        ),
    ],
    ids=lambda value: value[:40],
)
def test_unusable_settings_say_what_was_expected(write, text, expected):
    told = problems(write(text))
    assert any(expected in one for one in told), told


def test_a_file_that_is_not_there_is_a_problem_only_if_it_was_named(tmp_path):
    (problem,) = problems(tmp_path / "gone.yaml")
    assert "cannot be read" in problem
    assert load(Flags(instances=("a=http://h:1",)), {}).instances


def test_a_flag_that_is_no_instance_is_refused():
    with pytest.raises(SettingsError, match="expected NAME=URL"):
        load(Flags(instances=("http://h:1",)), {})


def test_a_wrong_token_is_not_shown_in_its_own_complaint(write):
    (problem,) = problems(
        write("{control_plane: {token: [secret]}, instances: [{name: a, url: 'http://h:1'}]}")
    )
    assert "secret" not in problem


def test_an_environment_value_replaces_a_section_of_the_wrong_shape(write):
    path = write("{control_plane: 3, instances: [{name: a, url: 'http://h:1'}]}")
    assert load(Flags(config=path, control_plane="p:1"), {}).control_plane.address == ("p:1",)


@given(st.text(max_size=40))
def test_no_instance_flag_makes_anything_but_settings_or_a_clear_problem(text):
    try:
        load(Flags(instances=(text,)), {})
    except SettingsError as error:
        assert all(error.problems)  # noqa: PT017 - both outcomes are right

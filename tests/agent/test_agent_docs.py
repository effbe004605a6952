"""docs/agent.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from sidecar_agent import cli, drain
from sidecar_agent.engine.adapters import ADAPTERS
from sidecar_agent.settings import InstanceSettings, Settings
from sidecar_agent.sources import ENVIRONMENT

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "agent.md").read_text()
EXAMPLE = yaml.safe_load(re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[1])


def keys(values, prefix=""):
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict) and key != "metrics":
            yield from keys(value, f"{prefix}{key}.")


def test_the_documented_settings_load_and_are_all_there_are():
    settings = Settings.model_validate(EXAMPLE)
    documented = set(keys({**EXAMPLE, "instances": None}))
    actual = set(keys({**settings.model_dump(mode="json"), "instances": None}))
    assert documented == actual
    assert set(EXAMPLE["instances"][0]) == set(InstanceSettings.model_fields)


def test_the_documented_defaults_are_the_defaults():
    defaults = Settings().model_dump(mode="json")
    assert {**defaults, "instances": []} == {**EXAMPLE, "instances": []}
    example = EXAMPLE["instances"][0]
    instance = InstanceSettings(name="a", url="http://h:1").model_dump(mode="json")
    for key in ("kv_capacity_tokens", "hang_s", "metrics"):
        assert example[key] == instance[key], key


@pytest.mark.parametrize("kind", list(ADAPTERS))
def test_every_engine_is_documented(kind):
    assert f"| `{kind}` |" in TEXT


@pytest.mark.parametrize("variable", list(ENVIRONMENT))
def test_every_variable_is_documented(variable):
    assert variable in TEXT or variable.removeprefix("SIDECAR_AGENT") in TEXT


def test_every_command_and_exit_code_is_documented():
    for command in cli.app.registered_commands:
        name = command.name or command.callback.__name__
        assert f"| `{name}" in TEXT, name
    row = next(line for line in TEXT.splitlines() if line.startswith("| `drain"))
    for code in (
        drain.EXIT_NO_AGENT,
        drain.EXIT_UNKNOWN_INSTANCE,
        drain.EXIT_UNCONFIRMED,
        drain.EXIT_BUSY,
    ):
        assert f"{code} " in row

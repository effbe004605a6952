from __future__ import annotations

from pathlib import Path

import pytest

from xds_server.config.difference import MOST, differences
from xds_server.config.load import load_text

DESIGN = (Path(__file__).parent / "design.yaml").read_text()
CHAT = "models.chat"
A100_1 = '          - {name: a100-1, address: "127.0.0.1:8002", capacity: 40}\n'


def changed(*replacements: tuple[str, str]) -> list[str]:
    text = DESIGN
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    return differences(load_text(DESIGN), load_text(text))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param("# the body", "# any", [], id="comment"),
        pytest.param("high: 0.80", "high: 0.7", ["policy.kv.high: 0.8 -> 0.7"], id="number"),
        pytest.param("port: 10000", "port: 1", ["listener_port: 10000 -> 1"], id="listener"),
        pytest.param(
            A100_1, "", [f"{CHAT}.tiers.primary.instances.a100-1: taken out"], id="instance-gone"
        ),
        pytest.param(
            A100_1,
            A100_1 + A100_1.replace("a100-1", "a100-2").replace("8002", "8009"),
            [f"{CHAT}.tiers.primary.instances.a100-2: added"],
            id="instance-added",
        ),
        pytest.param(
            '"127.0.0.1:8002", capacity: 40',
            '"127.0.0.1:8007"',
            [
                f"{CHAT}.tiers.primary.instances.a100-1.port: 8002 -> 8007",
                f"{CHAT}.tiers.primary.instances.a100-1.capacity: 40 -> nothing",
            ],
            id="instance-moved",
        ),
        pytest.param(
            "max_tokens: {scale: 0.5, floor: 16}",
            "max_tokens: null",
            [
                (
                    f'{CHAT}.tiers.fallback.max_tokens: {{"scale": 0.5, "floor": 16, "when_absent": null}}'
                    " -> nothing"
                )
            ],
            id="section-gone",
        ),
        pytest.param(
            "status: 200",
            "status: 503",
            [f"{CHAT}.tiers.static.answer.status: 200 -> 503"],
            id="answer",
        ),
        pytest.param(
            "stages: [0.10, 0.30, 1.0]",
            "stages: [0.5, 1.0]",
            ["policy.recovery.stages: [0.1, 0.3, 1.0] -> [0.5, 1.0]"],
            id="list",
        ),
        pytest.param(
            "policy:", "server: {grace_s: 7}\npolicy:", ["server.grace_s: 7"], id="server"
        ),
        pytest.param(
            'name: a100-0, address: "127.0.0.1:8001", capacity: 40}\n' + A100_1,
            'name: a100-1, address: "127.0.0.1:8002", capacity: 40}\n'
            '          - {name: a100-0, address: "127.0.0.1:8001", capacity: 40}\n',
            [f"{CHAT}.tiers.primary.instances: in another order"],
            id="order",
        ),
        pytest.param(
            "{name: a100-0",
            "{name: a100-9",
            [
                f"{CHAT}.tiers.primary.instances.a100-0: taken out",
                f"{CHAT}.tiers.primary.instances.a100-9: added",
            ],
            id="renamed",
        ),
    ],
)
def test_every_difference_is_one_line_with_its_path(old, new, expected):
    assert changed((old, new)) == expected


def test_the_first_instances_of_a_tier_are_added_one_by_one():
    discovering = DESIGN.replace(
        '- {name: l4-0, address: "127.0.0.1:8003", capacity: 20}', "{discover: agents}"
    )
    lines = differences(load_text(discovering), load_text(DESIGN))
    assert f"{CHAT}.tiers.fallback.instances.l4-0: added" in lines
    assert f"{CHAT}.tiers.fallback.instances.l4-0: taken out" in differences(
        load_text(DESIGN), load_text(discovering)
    )


def test_of_many_differences_the_first_are_told_and_how_many_more_there_are():
    many = "".join(
        f'          - {{name: n{each}, address: "10.0.0.1:{each + 1}"}}\n' for each in range(100)
    )
    lines = changed((A100_1, A100_1 + many))
    assert len(lines) == MOST + 1
    assert lines[-1] == "and 80 more"

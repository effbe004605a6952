from __future__ import annotations

from xds_server.config.problems import MISSING, ConfigError, Problem


def test_a_problem_reads_as_path_value_and_what_was_expected():
    problem = Problem.of("policy.kv.high", 0.99, "below policy.kv.critical (0.95)")
    assert str(problem) == "policy.kv.high: 0.99: expected below policy.kv.critical (0.95)"
    assert str(Problem.of("", MISSING, "a mapping")) == "(file): (missing): expected a mapping"


def test_an_error_lists_every_problem_on_a_line_of_its_own():
    problems = [Problem.of("a", 1, "text"), Problem.of("b", "x" * 500, "a number")]
    head, first, second = str(ConfigError("fleet.yaml", problems)).splitlines()
    assert head == "fleet.yaml: 2 problems"
    assert first == "  a: 1: expected text"
    assert len(second) < 200
    assert second.endswith(": expected a number")

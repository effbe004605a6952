"""`events --follow` against answers that a test makes up."""

from __future__ import annotations

import json

import pytest

from xds_server.commands import history


def an_event(number, name):
    return {"id": number, "name": name, "kind": "decision", "at_unix_s": 1.0}


def an_answer(*events):
    return {"events": list(events), "has_more": False, "trouble": ""}


@pytest.mark.parametrize("last", [7, None])
def test_who_follows_is_told_once_what_reaches_the_disk_meanwhile(monkeypatch, capsys, last):
    asked = []
    answers = [
        an_answer(*([an_event(last, "old")] if last else []), an_event(None, "new")),
        an_answer(an_event(8, "new")),
    ]

    def get(_server, _path, given):
        asked.append(given.get("after"))
        if not answers:
            raise KeyboardInterrupt
        return answers.pop(0)

    monkeypatch.setattr(history, "get", get)
    monkeypatch.setattr(history, "FOLLOW_S", 0.0)
    history.events(follow=True, as_json=True)
    told = [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]
    assert told == (["old", "new"] if last else ["new"])
    assert asked == [None, last or 0, 8]

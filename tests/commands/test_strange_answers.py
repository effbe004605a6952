"""What a command says of a server that is none, or is of another version: one sentence, and no traceback."""

from __future__ import annotations

import http.server
import json
import threading
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from xds_server.cli import app

COMMANDS = {
    "status": ("status",),
    "explain": ("explain", "chat"),
    "proxies": ("proxies",),
    "events": ("events",),
    "incident": ("incident", "1"),
    "drain": ("drain", "a", "--why", "x"),
    "undrain": ("undrain", "a"),
    "force": ("force", "a", "--for", "1m", "--why", "x"),
    "unforce": ("unforce",),
}


@contextmanager
def answering(body: bytes, status: int = 200):
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize(
    "body",
    [b"<html>hello</html>", b"\xff\xfe", b'{"a": 1}', b'[{"a": 1}]', b"[1]", b'{"models": [1]}'],
    ids=["page", "bytes", "object", "list", "number", "parts"],
)
def test_an_answer_that_is_not_of_this_version_is_one_sentence(command, body):
    with answering(body) as url:
        done = CliRunner().invoke(app, [*command, "--admin", url])
    assert done.exit_code == 1, done.output
    assert done.stderr.count("\n") == 1
    assert f"--admin: the answer of {url} cannot be used" in done.stderr
    assert "expected the admin address of an xds-server of this version" in done.stderr


EVIL = "it \x1b[2Jdied\x07\r\x9b31m"
ROW = {
    "id": 1, "at_unix_s": 1.0, "kind": "decision", "name": EVIL, "model": EVIL, "tier": "t", "instance": EVIL,
    "proxy": "", "before": EVIL, "after": "b", "rule": EVIL, "text": EVIL, "who": EVIL, "why": EVIL, "data": {},
}  # fmt: skip
ANSWERS = {
    "explain": (
        ("explain", "a"),
        {"subject": EVIL, "sentence": EVIL, "calculation": EVIL, "note": EVIL, "changes_when": EVIL},
    ),
    "events": (("events",), {"events": [ROW], "has_more": False, "trouble": EVIL}),
    "incident": (
        ("incident", "1"),
        {
            "event": ROW, "at_unix_s": 1.0, "from_unix_s": 0.0, "to_unix_s": 2.0, "models": [EVIL],
            "config_version": EVIL, "config_changes": [], "weights_before": [], "weights": [ROW],
            "evidence": [{"id": 1, "name": EVIL, "where": EVIL, "rule": EVIL, "inputs": {EVIL: EVIL}}],
            "timeline": [ROW], "is_cut": False,
        },
    ),
    "drain": (("drain", "a", "--why", "x"), {"instance": EVIL, "draining": True, "note": EVIL}),
    "force": (
        ("force", "a", "--for", "1m", "--why", "x"),
        {"model": EVIL, "tier": EVIL, "until": EVIL, "note": EVIL},
    ),
    "unforce": (("unforce",), {"model": EVIL, "tier": EVIL, "note": ""}),
    "refusal": (("status",), {"error": EVIL}),
}  # fmt: skip


@pytest.mark.parametrize(("command", "answer"), ANSWERS.values(), ids=ANSWERS)
def test_whatever_people_engines_and_proxies_say_no_terminal_obeys_it(command, answer):
    status = 400 if "error" in answer else 200
    with answering(json.dumps(answer).encode(), status) as url:
        done = CliRunner().invoke(app, [*command, "--admin", url])
    assert "died" in done.output
    assert all(sign.isprintable() or sign == "\n" for sign in done.output)

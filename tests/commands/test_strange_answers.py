"""What a command says of a server that is none, or is of another version: one sentence, and no traceback."""

from __future__ import annotations

import http.server
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
def answering(body: bytes):
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
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

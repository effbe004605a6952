"""`record` when it does not go as it should: nothing half-made stays, and nothing else is written over."""

from __future__ import annotations

import gzip
import http.server
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fakes.waiting import PATIENCE_S
from tests.fakes.xds_process import ROOT
from xds_server.cli import app

HEAD = b'{"recording":1}\n'
STEP = b'{"step":1,"inputs":{},"digest":"%s"}\n'
END = b'{"end":""}\n'


class Page(http.server.BaseHTTPRequestHandler):
    """Streams what the test wants, then waits until it may end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        for line in self.server.lines:  # type: ignore[attr-defined]
            self.wfile.write(line)
        self.wfile.flush()
        self.server.told.set()  # type: ignore[attr-defined]
        self.server.may_end.wait(PATIENCE_S)  # type: ignore[attr-defined]

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(*lines: bytes, stays: bool = False):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.lines = lines  # type: ignore[attr-defined]
    server.told, server.may_end = threading.Event(), threading.Event()  # type: ignore[attr-defined]
    if not stays:
        server.may_end.set()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.may_end.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()
        server.server_close()


def record(*arguments: str):
    return CliRunner().invoke(app, ["record", *arguments])


def test_lines_that_only_say_that_the_server_is_there_are_not_kept(tmp_path):
    file = tmp_path / "r.gz"
    with serving(HEAD, b"\n", b"\n", STEP % b"a", b"\n", END) as (_, url):
        done = record(str(file), "--admin", url)
    assert done.exit_code == 0, done.stderr
    assert gzip.decompress(file.read_bytes()) == HEAD + STEP % b"a" + END
    assert "1 evaluations" in done.stdout


def test_a_server_that_goes_away_leaves_nothing(tmp_path):
    with serving(HEAD, STEP % b"a") as (_, url):
        done = record(str(tmp_path / "r.gz"), "--admin", url)
    assert (done.exit_code, done.stderr) == (
        1,
        "xds-server: the server ended before the recording did\n",
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [".", "", "folder", "device"])
def test_what_is_no_file_is_never_written_over_whatever_is_said(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("device")
    done = record(name, "--force", "--admin", "http://127.0.0.1:1")
    assert done.exit_code == 2
    assert done.stderr.endswith("expected the name of a file to be written\n")
    assert Path("device").is_fifo()


def typed(file: Path, url: str, **options) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "xds_server", "record", str(file), "--admin", url]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, **pipes, **options)


def test_ctrl_c_ends_a_recording_early_and_keeps_it(tmp_path):
    file = tmp_path / "r.gz"
    with serving(HEAD, *(STEP % b"a" for _ in range(9)), stays=True) as (server, url):
        recording = typed(file, url)
        assert server.told.wait(PATIENCE_S)
        # What was sent has to be read before; nothing says when that is done but the file.
        part = tmp_path / "r.gz.part"
        deadline = threading.Event()
        while not part.exists():
            deadline.wait(0.01)
        deadline.wait(0.3)
        recording.send_signal(signal.SIGINT)
        out, said = recording.communicate(timeout=PATIENCE_S)
    assert recording.returncode == 0, said
    assert b"it ended early: Ctrl-C" in said
    assert b"9 evaluations" in out
    lines = gzip.decompress(file.read_bytes()).splitlines()
    assert json.loads(lines[-1]) == {"end": "Ctrl-C"}
    assert list(tmp_path.iterdir()) == [file]


def test_a_disk_that_is_full_leaves_nothing_and_says_so(tmp_path):
    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    noise = (b'{"step":1,"x":"%s"}\n' % os.urandom(2000).hex().encode() for _ in range(200))
    with serving(HEAD, *noise, END) as (_, url):
        recording = typed(tmp_path / "r.gz", url, preexec_fn=small)
        _, said = recording.communicate(timeout=PATIENCE_S)
    assert recording.returncode == 1
    assert said.decode() == (
        f"xds-server: FILE: {tmp_path / 'r.gz'}: File too large: nothing is kept\n"
    )
    assert list(tmp_path.iterdir()) == []

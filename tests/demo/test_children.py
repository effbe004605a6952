from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from demo import stage
from demo.__main__ import main, parse_arguments
from demo.children import Children, DemoError, free_ports
from demo.incident import background
from tests.fakes.envoy import eventually
from tests.fakes.waiting import PATIENCE_S

SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    f"import signal; signal.signal(15, signal.SIG_IGN); {SLEEPER[-1]}",
]


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def up(child) -> bool:
    return "up" in child.log.read_text()


async def test_children_end_with_their_context_the_stubborn_ones_too(tmp_path):
    async with Children(tmp_path) as children:
        polite = await children.start("polite", SLEEPER)
        stubborn = await children.start("stubborn", STUBBORN)
        await eventually(lambda: up(stubborn))
        await stubborn.stop(grace_s=0.2)
        assert is_alive(polite.process.pid)

    assert not is_alive(polite.process.pid)
    assert not is_alive(stubborn.process.pid)
    assert stubborn.process.returncode == -signal.SIGKILL


async def test_children_end_when_the_block_fails(tmp_path):
    children = Children(tmp_path)

    async def fail() -> None:
        async with children:
            await children.start("sleeper", SLEEPER)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    child = children.all[0]

    assert not is_alive(child.process.pid)


async def test_a_child_that_died_is_named_with_the_end_of_its_log(tmp_path):
    async with Children(tmp_path) as children:
        await children.start("broken", [sys.executable, "-c", "raise SystemExit('port in use')"])

        async def never() -> None:
            return None

        with pytest.raises(DemoError, match=r"broken ended with code 1.*\nport in use"):
            await children.until(never, what="nothing", timeout_s=20)


async def test_waiting_ends_with_what_did_not_happen(tmp_path):
    async def refused() -> None:
        raise ConnectionRefusedError

    async with Children(tmp_path) as children:
        with pytest.raises(DemoError, match="the first answer did not happen within 0 s"):
            await children.until(refused, what="the first answer", timeout_s=0.2)


async def test_a_missing_program_is_one_sentence(tmp_path):
    async with Children(tmp_path) as children:
        with pytest.raises(DemoError, match="envoy cannot be started"):
            await children.start("envoy", [tmp_path / "nothing-here"])


async def test_the_kernel_ends_children_of_a_killed_demo(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, pathlib, sys, time\n"
        "from demo.children import Children\n"
        "async def main():\n"
        f"    async with Children(pathlib.Path({str(tmp_path)!r})) as children:\n"
        f"        child = await children.start('orphan', {SLEEPER!r})\n"
        "        print(child.process.pid, flush=True)\n"
        "        time.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(stage.ROOT)},
    )
    assert parent.stdout is not None
    pid = int(await asyncio.wait_for(parent.stdout.readline(), PATIENCE_S))

    async def orphan_is_up() -> bool:
        return "up" in (tmp_path / "orphan.log").read_text()

    async def orphan_is_gone() -> bool:
        # A reaped or a zombie process has no command line any more.
        path = Path(f"/proc/{pid}/cmdline")
        return not path.exists() or not path.read_bytes()

    await eventually(orphan_is_up)
    parent.kill()
    await parent.wait()
    await eventually(orphan_is_gone)


def test_free_ports_are_all_different():
    assert len(set(free_ports(20))) == 20


async def test_the_first_error_beside_the_play_ends_it_with_its_own_type():
    async def fails() -> None:
        raise DemoError("a100-0 ended")

    with pytest.raises(DemoError, match="a100-0 ended"):
        async with background(asyncio.sleep(60), fails()):
            await asyncio.sleep(60)


async def test_background_work_ends_with_the_block():
    async with asyncio.timeout(30):
        async with background(asyncio.sleep(60)):
            pass


def test_a_missing_envoy_is_one_sentence_and_exit_code_1(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ENVOY", str(tmp_path / "no-envoy"))

    assert main(["--plain"]) == 1
    assert capsys.readouterr().err == (
        f"The demo cannot go on: there is no Envoy at {tmp_path}/no-envoy: run `make setup`, or set "
        "ENVOY to a binary\n"
    )


def test_a_missing_compiler_means_no_gpus_and_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))

    library, note = stage.nvml_stub(tmp_path)

    assert library is None
    assert "no C compiler" in note
    assert "\n" not in note


def test_a_play_that_is_too_short_is_refused(capsys):
    with pytest.raises(SystemExit) as caught:
        parse_arguments(["--seconds", "5"])

    assert caught.value.code == 2
    assert "--seconds is 5; expected at least" in capsys.readouterr().err

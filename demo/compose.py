"""The demo's parts that compose.yaml needs besides the processes themselves.

    python -m demo.compose configure a100-0=10.84.62.11:8001 ... --write fleet.yaml
    python -m demo.compose perform --server http://xds-server:18001 --engine a100-0=http://a100-0:9001 ...

`configure` writes the control plane's configuration of the play. `perform` waits until the stage
answers, plays the incident, prints the same report as `make demo`, and goes on with gentle load until
the next performance, so that what is on the page never stands still.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from rich.console import Console

from demo import view
from demo.incident import TIERS, Incident, background, ending_in_order
from demo.load import LoadGenerator
from demo.outcome import Outcome
from demo.play import ACTS, MODEL, PARTS, configuration, paced
from demo.scene import Scene
from demo.stage import PROXIES, Stage
from demo.watch import Watch

PLAIN_WIDTH = 120
START_S = 120.0
"""How long the stage may take until it answers; the order of its start is compose's business."""
POLL_S = 0.5
DEFAULT_SECONDS = sum(act.seconds for act in ACTS)
DEFAULT_PAUSE_S = 60.0
QUARANTINE_WINDOW_S = 100.0
"""Shorter than two performances: three deaths never fall into it."""


class ComposeError(Exception):
    """It cannot go on; the text is one sentence for the user."""


def fleet(addresses: Mapping[str, str], *, listen: str) -> dict[str, Any]:
    """Return the play's configuration with a listener that other containers reach."""
    host, _, port = listen.rpartition(":")
    document = configuration(addresses) | {"listener": {"address": host, "port": int(port)}}
    # The instance that dies in every performance shall not be taken for one in a restart loop.
    document["policy"]["recovery"] |= {"quarantine_window_s": QUARANTINE_WINDOW_S}
    return document


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a configuration in one step: a server that watches it never sees half of it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as partial:
        yaml.safe_dump(dict(document), partial, sort_keys=False)
    written = Path(partial.name)
    written.chmod(0o644)
    written.replace(path)


class Records:
    """Hands what clients got to the scene of the performance that is on, if one is."""

    def __init__(self) -> None:
        self.scene: Scene | None = None

    def __call__(self, outcome: Outcome) -> None:
        """Take in one outcome."""
        if self.scene is not None:
            self.scene.record(outcome)


async def perform(
    stage: Stage, console: Console, *, seconds: float, pause_s: float, plays: int
) -> int:
    """Play again and again (`plays` times, 0 = until ended); return the exit code.

    Raises:
        ComposeError: the stage did not answer in time.
    """
    good, played = True, 0
    records = Records()
    async with aiohttp.ClientSession() as session:
        console.print("Waiting until the stage answers.", highlight=False)
        await _until_answering(session, stage)
        console.print("The stage answers: curtain up.", highlight=False)
        watch = Watch(session, server=stage.server, engines=stage.engines, proxies=stage.admins)
        async with LoadGenerator(stage.proxies, records).running() as load:
            while True:
                faults = await _play(
                    watch, stage, load=load, records=records, console=console, seconds=seconds
                )
                played += 1
                good = good and not faults
                for fault in faults:
                    console.print(fault, markup=False, highlight=False, soft_wrap=True)
                if not faults:
                    console.print("No client saw a failed request.", highlight=False)
                if played == plays:
                    return 0 if good else 1
                load.rate = ACTS[0].rate
                console.print(
                    f"Gentle load; the next performance in {pause_s:g} s.", highlight=False
                )
                await asyncio.sleep(pause_s)


async def _play(
    watch: Watch,
    stage: Stage,
    *,
    load: LoadGenerator,
    records: Records,
    console: Console,
    seconds: float,
) -> list[str]:
    scene = Scene(watch=watch, tiers=TIERS)
    records.scene = scene
    incident = Incident(stage, scene, load, paced(ACTS, seconds))
    try:
        async with background(watch.follow(), view.show(scene, console)):
            await incident.play()
    finally:
        records.scene = None
    return incident.report(console)


async def _until_answering(session: aiohttp.ClientSession, stage: Stage) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    deadline = time.monotonic() + START_S
    for url in stage.proxies.values():
        while not await _answers(session, url, body):
            if time.monotonic() > deadline:
                raise ComposeError(f"{url} did not answer a request within {START_S:g} s")
            await asyncio.sleep(POLL_S)


async def _answers(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> bool:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            return response.status == 200
    return False


def _pairs(given: Sequence[str], *, flag: str, names: Sequence[str]) -> dict[str, str]:
    found = dict(text.partition("=")[::2] for text in given)
    if sorted(found) != sorted(names) or not all(found.values()):
        expected = " ".join(f"{name}=..." for name in names)
        raise ComposeError(f"{flag}: found {' '.join(given) or 'nothing'}, expected {expected}")
    return {name: found[name].rstrip("/") for name in names}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    command_line = argparse.ArgumentParser(prog="python -m demo.compose", description=__doc__)
    command_line.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = command_line.add_subparsers(dest="command", required=True)
    configure = commands.add_parser("configure", help="write the control plane's configuration")
    configure.add_argument("address", nargs="+", help="NAME=IP:PORT of every engine")
    configure.add_argument("--listen", default="0.0.0.0:10000", help="ip:port of the proxies")
    configure.add_argument("--write", type=Path, required=True, help="the file to write")
    play = commands.add_parser("perform", help="play the incident, again and again")
    play.add_argument("--server", required=True, help="admin URL of the control plane")
    for flag, text in (
        ("--engine", "NAME=URL for orders to every engine"),
        ("--address", "NAME=IP:PORT of every engine, as the proxies see it"),
        ("--proxy", "NAME=URL of every proxy (sotw, delta)"),
        ("--proxy-admin", "NAME=URL of every proxy's admin pages"),
    ):
        play.add_argument(flag, action="append", default=[], help=text)
    play.add_argument("--seconds", type=float, default=DEFAULT_SECONDS, help="length of the play")
    play.add_argument(
        "--pause-s", type=float, default=DEFAULT_PAUSE_S, help="gentle load between two plays"
    )
    play.add_argument("--plays", type=int, default=0, help="end after so many; 0 = never")
    return command_line


def stage_of(given: argparse.Namespace) -> Stage:
    """Return where everything is.

    Raises:
        ComposeError: the arguments leave something out.
    """
    engines = [part.name for part in PARTS]
    return Stage(
        server=given.server.rstrip("/"),
        engines=_pairs(given.engine, flag="--engine", names=engines),
        addresses=_pairs(given.address, flag="--address", names=engines),
        proxies=_pairs(given.proxy, flag="--proxy", names=list(PROXIES)),
        admins=_pairs(given.proxy_admin, flag="--proxy-admin", names=list(PROXIES)),
        gpu_note="Each agent sees a simulated GPU of 80 GiB through a stub of NVML",
    )


async def _perform(given: argparse.Namespace) -> int:
    # A log has no width of its own: give the tables the room they need.
    console = Console(force_terminal=False, width=PLAIN_WIDTH)
    with ending_in_order():
        return await perform(
            stage_of(given),
            console,
            seconds=given.seconds,
            pause_s=given.pause_s,
            plays=given.plays,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command: 0 good, 1 a failed request or no stage, 2 bad usage, 130 ended."""
    given = parser().parse_args(arguments)
    try:
        if given.command == "perform":
            return asyncio.run(_perform(given))
        names = [part.name for part in PARTS]
        addresses = _pairs(given.address, flag="addresses", names=names)
        write(given.write, fleet(addresses, listen=given.listen))
    except ComposeError as error:
        print(f"demo.compose: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

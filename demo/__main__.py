"""`python -m demo`: plays the incident on this machine."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console

from demo.children import DemoError
from demo.incident import ending_in_order, perform
from demo.play import ACTS

DEFAULT_SECONDS = sum(act.seconds for act in ACTS)
SHORTEST_S = 40.0
"""Shorter, and the instance that died is not back in time."""
PLAIN_WIDTH = 120


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Plays an incident on loopback: a 70B pool runs out of KV cache, spills to the "
        "8B, loses an instance and comes back. Exit code 0 when no client saw a failed request.",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=DEFAULT_SECONDS,
        help="length of the play without its start",
    )
    parser.add_argument("--plain", action="store_true", help="lines instead of a live picture")
    parser.add_argument("--keep", action="store_true", help="keep logs and configurations")
    parser.add_argument(
        "--stay",
        action="store_true",
        help="after the play, go on with little load until Ctrl-C, to look around",
    )
    given = parser.parse_args(arguments)
    if given.seconds < SHORTEST_S:
        parser.error(f"--seconds is {given.seconds:g}; expected at least {SHORTEST_S:g}")
    return given


async def _main(given: argparse.Namespace) -> int:
    console = Console(force_terminal=False if given.plain else None)
    if not console.is_terminal:
        # A pipe has no width of its own: give the tables the room they need.
        console = Console(force_terminal=False, width=PLAIN_WIDTH)
    with ending_in_order():
        try:
            return await perform(console, seconds=given.seconds, keep=given.keep, stays=given.stay)
        except DemoError as error:
            print(f"The demo cannot go on: {error}", file=sys.stderr)
            return 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Play; 0 good, 1 a failed request or no stage, 130 interrupted."""
    given = parse_arguments(arguments)
    try:
        return asyncio.run(_main(given))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""The other end of `benchmarks.rig.Child`: JSON commands on standard input, one answer each."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Command = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def say(answer: dict[str, Any]) -> None:
    """Write one answer."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def obey(commands: dict[str, Command]) -> None:
    """Run commands by their name (`do`) until standard input closes."""
    reader = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        command = json.loads(line)
        say(await commands[command["do"]](command))


def pusher(push: Callable[[str], dict[str, Any]]) -> dict[str, Command]:
    """Return the commands of a server that can push: one change, or many at a rate."""

    async def once(command: dict[str, Any]) -> dict[str, Any]:
        return push(command["type_url"])

    async def many(command: dict[str, Any]) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        start, made = loop.time(), []
        for number in range(int(command["hz"] * command["seconds"])):
            await asyncio.sleep(max(0.0, start + number / command["hz"] - loop.time()))
            made.append(push(command["type_url"]))
        return {"pushes": made}

    return {"push": once, "storm": many}

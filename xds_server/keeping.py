"""Keeping a part of the process running, whatever goes wrong in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from xds_server import logs
from xds_server.clock import Clock
from xds_server.observability.metrics import Tally

LONGEST_PAUSE_S = 60.0
"""Before a part that fails is run again; one that ran longer than this begins anew with short ones."""


async def keep(
    name: str, part: Callable[[], Coroutine[Any, Any, None]], clock: Clock, tally: Tally
) -> None:
    """Run a part until it returns, and again after whatever it raises: later each time that it fails soon."""
    log = logs.get("server")
    delay_s = 1.0
    while True:
        began = clock()
        try:
            await part()
        except Exception:
            if clock() - began > LONGEST_PAUSE_S:
                delay_s = 1.0
            tally.add("fleet_control_loop_errors_total", name)
            log.exception(logs.PART_FAILED, part=name, again_in_s=delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(LONGEST_PAUSE_S, 2 * delay_s)
        else:
            return

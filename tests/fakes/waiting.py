"""Waiting for a condition, with a deadline: never a sleep for luck."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60.0
"""Long enough for a busy machine; nothing waits that long when it works."""
POLL_S = 0.01


async def until(
    condition: Callable[[], Any], what: str = "a condition", timeout_s: float = PATIENCE_S
) -> Any:
    """Return the first truthy result of `condition`, a function or a coroutine function.

    Raises:
        AssertionError: it did not come in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"timed out after {timeout_s:g} s waiting for {what}"
        await asyncio.sleep(POLL_S)

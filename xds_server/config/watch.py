"""Notice that the configuration file changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from watchfiles import awatch

POLL_S = 5
ABSENCE_S = 1.0
"""A file that is gone for longer was deleted; editors that replace a file by two steps need less."""


async def changes(path: Path, stop: asyncio.Event, *, known: str) -> AsyncIterator[str | None]:
    """Yield the text whenever it differs from what is known or was yielded before; None when it is gone.

    The directory is watched, not the file: editors replace files by renaming, and a Kubernetes
    ConfigMap swaps a symbolic link next to them. Where no notice comes (network file systems), the
    file is looked at every `POLL_S`. Judging the text is the loader's business.
    """
    last: str | None = known
    watch = awatch(
        path.parent,
        recursive=False,
        stop_event=stop,
        debounce=250,
        step=250,
        rust_timeout=POLL_S * 1000,
        yield_on_timeout=True,
    )
    async for _ in watch:
        text = _read(path)
        if text is None and last is not None:
            await asyncio.sleep(ABSENCE_S)
            text = _read(path)
        if text != last and not stop.is_set():
            last = text
            yield text


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None

"""Notice that the configuration file changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from watchfiles import awatch


async def changes(path: Path, stop: asyncio.Event) -> AsyncIterator[str]:
    """Yield the new text whenever the file's content differs from what was yielded before.

    The directory is watched, not the file: editors replace files by renaming, and a Kubernetes
    ConfigMap swaps a symbolic link next to them. An unreadable or half-written file is yielded as
    it is when it can be read; judging it is the loader's business.
    """
    last = _read(path)
    async for _ in awatch(path.parent, recursive=False, stop_event=stop, debounce=200, step=20):
        text = _read(path)
        if text is not None and text != last:
            last = text
            yield text


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None

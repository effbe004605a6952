"""Reading the body of an engine's answer, whole and bounded."""

from __future__ import annotations

import aiohttp


async def whole(response: aiohttp.ClientResponse, *, limit: int) -> bytes | None:
    """Return the body; None, and the connection closed, where it is longer than `limit` bytes.

    `content.read(n)` is not this: it returns what has arrived, however little that is.
    """
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > limit:
            response.close()
            return None
        parts.append(part)
    return b"".join(parts)

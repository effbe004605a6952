"""How much of what leads to nothing a client may send. Pure: time is an argument."""

from __future__ import annotations

from xds_server.istio.picker.framing.frames import Error, Http2Error

BURST = 1000
PER_S = 100.0
"""Frames. nghttp2, which Envoy and Node have, allows resets a burst of 1000, and 33/s."""


class Patience:
    """Counts frames that cost work and carry no message: pings, settings, requests that are reset at once.

    Each is legal. Floods of them are how servers of HTTP/2 have been brought down (CVE-2019-9512 to 9518,
    CVE-2023-44487).
    """

    def __init__(self) -> None:
        self._left = float(BURST)
        self._since: float | None = None

    def spend(self, now: float, what: str) -> None:
        """Count one.

        Args:
            now: Seconds of any clock that does not go back.
            what: What came, for the client to read.

        Raises:
            Http2Error: That was one too many.
        """
        if self._since is not None:
            self._left = min(float(BURST), self._left + PER_S * (now - self._since))
        self._since = now
        if self._left < 1.0:
            raise Http2Error(Error.ENHANCE_YOUR_CALM, f"too many {what}")
        self._left -= 1.0

"""Tell the service manager how the process is: systemd's sd_notify, as one datagram and nothing else.

systemd starts a unit of `Type=notify` with a socket in `NOTIFY_SOCKET` and, with `WatchdogSec=`, the time
after which silence counts as a hang in `WATCHDOG_USEC`; both are described in sd_notify(3) and
sd_watchdog_enabled(3). Without the variables, as in a container, every call does nothing. No call
raises: a manager that does not listen must not end what it manages.

Beats are sent from the event loop on purpose: a loop that is stuck stops beating, and is started anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

BEATS_PER_TIMEOUT = 2
"""A beat is due at half the time, as sd_watchdog_enabled(3) advises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceManager:
    """Whoever started this process."""

    address: str = ""
    """Its datagram socket: a path, or a name in the abstract namespace after "@"; empty = nobody asks."""
    watchdog_s: float | None = None
    """Silence for this long counts as a hang; None = nobody watches."""

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read what the manager left in the environment; what cannot be read is nothing."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        return cls(address=address, watchdog_s=_watchdog_s(environment))

    def ready(self, status: str = "") -> None:
        """Say that the start is over; the status is one line for `systemctl status`."""
        self._send({"READY": "1"} | _status(status))

    def stopping(self) -> None:
        """Say that the process is about to end on purpose."""
        self._send({"STOPPING": "1"})

    def tell(self, status: str) -> None:
        """Change the line that `systemctl status` shows."""
        self._send(_status(status))

    async def beat(self) -> None:
        """Beat until cancelled, where a watchdog waits for it."""
        while self.watchdog_s is not None:
            self._send({"WATCHDOG": "1"})
            await asyncio.sleep(self.watchdog_s / BEATS_PER_TIMEOUT)

    def _send(self, assignments: Mapping[str, str]) -> None:
        if not self.address or not assignments:
            return
        text = "".join(f"{name}={value}\n" for name, value in assignments.items())
        # An abstract name begins with a NUL byte; "@" stands for it in text.
        address = "\0" + self.address[1:] if self.address[0] == "@" else self.address
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            # Never wait: a full queue loses this message, and the next beat comes soon.
            sender.setblocking(False)
            sender.connect(address)
            sender.send(text.encode())


def _status(text: str) -> dict[str, str]:
    return {"STATUS": " ".join(text.split())} if text else {}


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    watched = environment.get("WATCHDOG_PID", "")
    if watched and watched != str(os.getpid()):
        return None  # Meant for another process, whose environment we were given.
    microseconds = environment.get("WATCHDOG_USEC", "")
    if not (microseconds.isascii() and microseconds.isdigit() and int(microseconds) > 0):
        return None
    return int(microseconds) / 1_000_000

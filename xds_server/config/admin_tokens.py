"""Who may look and who may order: the file of the admin address's tokens.

One token per line: name, role, SHA-256 of the token in hex, and the time at which it ends, if it ends:

    # name  role      sha256                                                            expires
    ada     operator  2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae  2027-01-31T00:00:00Z

The file holds no secrets: a token has too many bits to be found from its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from xds_server.config.names import NAME_PATTERN, NAME_RULE
from xds_server.config.problems import MISSING, ConfigError, Problem

MOST_BYTES = 1024 * 1024
GAP_S = 1.0
"""The file is looked at this often at most."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Role(StrEnum):
    """What a token permits."""

    VIEWER = "viewer"
    """To look at everything."""
    OPERATOR = "operator"
    """To look and to order: drain, force and their ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One line of the file."""

    name: str
    """Whom the history names as who ordered."""
    role: Role
    digest: bytes
    expires_unix_s: float | None = None

    def has_expired(self, now_unix_s: float) -> bool:
        """Whether its time is over."""
        return self.expires_unix_s is not None and now_unix_s >= self.expires_unix_s


def digest(token: str) -> bytes:
    """Return what the file has of a token."""
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def find(tokens: Iterable[Token], given: str) -> Token | None:
    """Return the token that was given; how long it takes does not tell how near a guess was."""
    asked, found = digest(given), None
    for each in tokens:
        if hmac.compare_digest(each.digest, asked):
            found = each
    return found


def parse_tokens(text: str, *, source: str) -> tuple[Token, ...]:
    """Read the file's text.

    Raises:
        ConfigError: With everything that is wrong in it; digests are not repeated.
    """
    tokens: list[Token] = []
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"line {number}"
        if len(words) not in (3, 4):
            expected = "name, role, SHA-256 and perhaps a time, with spaces between them"
            problems.append(Problem(where, _count(words), expected))
            continue
        found = list(_problems(where, words))
        problems += found
        if not found:
            tokens.append(_token(words))
    digests = [each.digest for each in tokens]
    for index, each in enumerate(tokens):
        if each.digest in digests[:index]:
            expected = "each token once: whose is it?"
            problems.append(Problem(f"token of {each.name}", "twice", expected))
    if not tokens and not problems:
        problems.append(Problem.of("", MISSING, "at least one token"))
    if problems:
        raise ConfigError(source, problems)
    return tuple(tokens)


def _problems(where: str, words: list[str]) -> Iterable[Problem]:
    name, role, sha256 = words[:3]
    if not re.fullmatch(NAME_PATTERN, name):
        yield Problem.of(f"{where}, name", name, NAME_RULE)
    if role not in set(Role):
        yield Problem.of(f"{where}, role", role, " or ".join(Role))
    if not _DIGEST.fullmatch(sha256.lower()):
        # It may be the token itself, by mistake.
        yield Problem(f"{where}, SHA-256", f"{len(sha256)} characters", "64 hexadecimal digits")
    if len(words) > 3 and _moment(words[3]) is None:
        yield Problem.of(f"{where}, expires", words[3], "a time like 2027-01-31T00:00:00Z")


def _token(words: list[str]) -> Token:
    return Token(
        name=words[0],
        role=Role(words[1]),
        digest=bytes.fromhex(words[2]),
        expires_unix_s=_moment(words[3]) if len(words) > 3 else None,
    )


def _moment(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _count(words: list[str]) -> str:
    return f"{len(words)} word{'' if len(words) == 1 else 's'}"


class TokenFile:
    """The tokens of a file, read again when it has changed; one that cannot be used changes nothing."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.monotonic, gap_s: float = GAP_S
    ) -> None:
        """Read the file.

        Raises:
            ConfigError: It cannot be used.
        """
        self.path = path
        self.on_change: Callable[[str], None] = lambda _: None
        """Called with what is wrong with the changed file; empty = it is in use."""
        self.trouble = ""
        """What is wrong with the file as it is now."""
        self._clock = clock
        self._gap_s = gap_s
        self._looked_at = clock()
        self._seen = _signature(path)
        self._tokens = read_tokens(path)

    def tokens(self) -> tuple[Token, ...]:
        """Return the tokens in force."""
        now = self._clock()
        if now - self._looked_at >= self._gap_s:
            self._looked_at = now
            self._look()
        return self._tokens

    def _look(self) -> None:
        seen = _signature(self.path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            self._tokens = read_tokens(self.path)
            self.trouble = ""
        except ConfigError as error:
            self.trouble = str(error)
        self.on_change(self.trouble)


def read_tokens(path: Path) -> tuple[Token, ...]:
    """Read a file of tokens.

    Raises:
        ConfigError: It cannot be read, or something is wrong in it.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        text = content.decode()
    except OSError as error:
        problem = Problem("(file)", error.strerror or str(error), "a file that can be read")
        raise ConfigError(str(path), [problem]) from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [Problem("(file)", "not UTF-8", "text in UTF-8")]) from error
    if len(content) > MOST_BYTES:
        problem = Problem("(file)", "too long", f"at most {MOST_BYTES} bytes")
        raise ConfigError(str(path), [problem])
    return parse_tokens(text, source=str(path))


def _signature(path: Path) -> tuple[int, int, int, int] | None:
    """Return what differs when a file is another one; editors and Kubernetes replace files."""
    try:
        found = os.stat(path)  # noqa: PTH116 - what a link leads to is meant
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev

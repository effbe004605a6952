"""Which static templates a prompt's words call for: the Lua of a static tier whose templates have keywords.

A keyword is a word or a phrase. It is found whatever the case of either side, also where the prompt is written
with JSON escapes, and only as a whole word; with `*` at its end it may go on (`refund*` finds "refunds").
Scripts that put no spaces between words (Chinese, Japanese, Thai) know no whole words: there it may be anywhere.

Looked at is what the user wrote: `prompt`, or the `content` of messages with the role `user`, the newest `WINDOW`
bytes of it. The names of the templates that were found go into a request header, which routes match; so
classes, languages and streams stay the business of routes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import Any

from xds_server.core.model import StaticTemplate
from xds_server.resources.lua import lua_filter, program, quoted

HEADER = "x-static-keywords"
"""Inside a static tier only: the names of the templates with a keyword in the prompt, each between spaces."""
WINDOW = 32 * 1024
"""Bytes of prompt text that are looked at. Its cost is what keywords may cost a request whose prompt is long."""
STEPS_MOST = 1_000_000
"""Bytes outside of strings (a string counts for 16) after which a body is given up: it gets no keywords."""


def keyword_filter(templates: Sequence[StaticTemplate]) -> list[Any]:
    """Return the Lua filter, as a list of one; none if no template has keywords."""
    if not any(each.keywords for each in templates):
        return []
    return [lua_filter(keyword_program(templates))]


def keyword_program(templates: Sequence[StaticTemplate]) -> str:
    """Return the Lua program for templates, as text without other than ASCII characters."""
    wanted = [each for each in templates if each.keywords]
    forms = {each.name: [_Form(keyword) for keyword in each.keywords] for each in wanted}
    rows = [
        f"{{ {quoted(name)}, {{ {', '.join(row for form in found for row in form.rows())} }} }}"
        for name, found in forms.items()
    ]
    words = {word for found in forms.values() for form in found for word in form.words}
    pairs = [f"[{quoted(letter)}] = {quoted(fold)}" for letter, fold in _folds(words).items()]
    return "\n".join(
        [
            f"local HEADER = {quoted(HEADER)}",
            f"local WINDOW, STEPS_MOST = {WINDOW}, {STEPS_MOST}",
            f"local TEMPLATES = {{ {', '.join(rows)} }}",
            f"local FOLDED = {{ {', '.join(pairs)} }}",
            program("static/keywords.lua"),
        ]
    )


class _Form:
    """A keyword as it is searched for: folded, both composed and decomposed, and where it must end."""

    def __init__(self, keyword: str) -> None:
        word = " ".join(keyword.removesuffix("*").split())
        forms = (unicodedata.normalize(form, word.casefold()) for form in ("NFC", "NFD"))
        self.words = tuple(dict.fromkeys(forms))
        self._starts = _is_of_words(word[:1])
        self._ends = _is_of_words(word[-1:]) and not keyword.endswith("*")

    def rows(self) -> list[str]:
        """Return the Lua values."""
        checks = ", ".join("true" if each else "false" for each in (self._starts, self._ends))
        return [f"{{ {quoted(word)}, {checks} }}" for word in self.words]


def _is_of_words(letter: str) -> bool:
    """Whether words end next to this letter where another does not follow: the rule of `is_letter_at`."""
    if not (letter.isalnum() or letter == "_"):
        return False
    return ord(letter) < 0x800 or 0x1000 <= ord(letter) < 0x2000


def _folds(words: set[str]) -> dict[str, str]:
    """Return what other letters are in the words' letters, beyond ASCII: É is é, ß is ss, a wide space a space."""
    found = {letter: fold for letter, fold in _FOLDS() if any(fold in word for word in words)}
    return found | dict.fromkeys("\u00a0\u202f\u3000", " ")


@cache
def _FOLDS() -> tuple[tuple[str, str], ...]:  # noqa: N802 - a table that is made when it is needed
    letters = (chr(code) for code in (*range(0x80, 0xD800), *range(0xE000, 0x1E944)))
    pairs = ((letter, letter.casefold()) for letter in letters)
    return tuple((letter, fold) for letter, fold in pairs if fold != letter)

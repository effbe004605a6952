"""Lua programs for Envoy's Lua filter: the few things per request that nothing else of Envoy does."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from xds_server.resources.proto import pack, typed


@cache
def program(*files: str) -> str:
    """Return files as one program, without the comments and the indentation that only people need."""
    parts: list[str] = []
    for name in files:
        source = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
        lines = (line.strip() for line in source.splitlines())
        parts += [line for line in lines if line and not line.startswith("--")]
    return "\n".join(parts)


def lua_filter(code: str) -> Any:
    """Return the HTTP filter that runs a program."""
    source = typed.lua.Lua(default_source_code=typed.core.DataSource(inline_string=code))
    return typed.hcm.HttpFilter(name="envoy.filters.http.lua", typed_config=pack(source))


def quoted(text: str) -> str:
    """Return a text as a Lua string of ASCII characters."""
    safe = (
        chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else f"\\{b:03d}" for b in text.encode()
    )
    return '"' + "".join(safe) + '"'

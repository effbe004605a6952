"""A Lua program of ours as Envoy's Lua filter would run it, in LuaJIT within this process.

Only for what a program makes of a text; what Envoy makes of the program is for tests with Envoy.
"""

from __future__ import annotations

from typing import Any

from lupa import luajit21

_HANDLE = """
return function(body, headers)
  local set, marks = {}, {}
  local function same(_, name) return headers[name] end
  local held = {
    get = same,
    getNumValues = function(_, name) return headers[name] and 1 or 0 end,
    remove = function(_, name) headers[name] = nil end,
    replace = function(_, name, value) headers[name] = value; set[name] = value end,
  }
  local read = {
    length = function() return #body end,
    getBytes = function(_, from, count) return body:sub(from + 1, from + count) end,
  }
  envoy_on_request({
    headers = function() return held end,
    body = function() return body ~= nil and read or nil end,
    clearRouteCache = function() set.route_is_cleared = "yes" end,
    streamInfo = function()
      return { dynamicMetadata = function()
        return { set = function(_, _, key, value) marks[key] = value end }
      end }
    end,
  })
  return set, marks
end
"""


class LuaFilter:
    """A program that was loaded once, like a worker of Envoy does."""

    def __init__(self, program: str) -> None:
        self._lua = luajit21.LuaRuntime(encoding=None)
        self._lua.execute(program.encode())
        self._ask = self._lua.execute(_HANDLE.encode())

    def ask(self, body: bytes | None, headers: dict[str, str] | None = None) -> dict[str, str]:
        """Send a request; return the headers that the program set."""
        headers_set, _ = self._run(body, headers)
        return {key.decode(): value.decode() for key, value in headers_set.items()}

    def facts(self, body: bytes | None, headers: dict[str, str] | None = None) -> dict[str, Any]:
        """Send a request; return the dynamic metadata that the program set."""
        _, marks = self._run(body, headers)
        return {
            key.decode(): value.decode() if isinstance(value, bytes) else value
            for key, value in marks.items()
        }

    def _run(self, body: bytes | None, headers: dict[str, str] | None) -> tuple[Any, Any]:
        table = self._lua.table_from(
            {key.encode(): value.encode() for key, value in (headers or {}).items()}
        )
        found: tuple[Any, Any] = self._ask(body, table)
        return found

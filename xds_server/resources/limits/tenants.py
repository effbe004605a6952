"""Who sends a request, where tenants are listed by the hash of their key: Lua, because nothing of Envoy hashes."""

from __future__ import annotations

from typing import Any

from xds_server.core.limits import Tenants
from xds_server.resources.limits.limit_rules import TENANT
from xds_server.resources.lua import lua_filter, program, quoted
from xds_server.resources.names import METADATA

_SCHEMES = {"authorization": "bearer "}
"""What stands before the key in a header, in lower case."""


def tenant_filters(tenants: Tenants | None) -> list[Any]:
    """Author the filter that names tenants by their hash, as a list of one; none where headers name them."""
    if tenants is None or not tenants.hashed:
        return []
    return [lua_filter(tenant_program(tenants.header))]


def tenant_program(header: str) -> str:
    """Return the program for a header."""
    constants = {
        "NAMESPACE": METADATA,
        "KEY": TENANT,
        "HEADER": header,
        "SCHEME": _SCHEMES.get(header, ""),
    }
    lines = [f"local {name} = {quoted(value)}" for name, value in constants.items()]
    return "\n".join((*lines, program("limits/tenant.lua")))

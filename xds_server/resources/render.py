"""A snapshot as JSON, for people: `xds-server render` and the debug pages.

The served bytes are decoded with the typed messages, which know everything that is authored here. What even
they do not know is shown as `@unknown` or as an Any's `value` in base64, never left out. Field names
are those of the protocol, so a resource without such fields can be pasted into an Envoy configuration.
"""

from __future__ import annotations

import base64
import enum
from datetime import timedelta
from typing import Any

from xds_server.resources import snapshot as served
from xds_server.resources.proto import parse, parse_any, typed
from xds_server.resources.snapshot import Snapshot

TITLES = {
    served.CLUSTER: "clusters",
    served.ENDPOINT: "endpoints",
    served.LISTENER: "listeners",
    served.ROUTE: "routes",
    served.EXTENSION_CONFIG: "limiters",
}


def render(snapshot: Snapshot) -> dict[str, Any]:
    """Return `{"clusters": {"version": ..., "resources": {name: {"version", "resource"}}}, ...}`.

    A type that is not among these sections appears under its type URL.
    """
    return {
        TITLES.get(kind.type_url, kind.type_url): {
            "version": kind.version,
            "resources": {
                name: {
                    "version": resource.version,
                    "resource": render_body(kind.type_url, resource.body),
                }
                for name, resource in sorted(kind.resources.items())
            },
        }
        for kind in snapshot.types.values()
    }


def render_body(type_url: str, body: bytes) -> Any:
    """Return one resource as JSON; base64 text if its type is unknown."""
    message = parse(type_url, body)
    return _base64(body) if message is None else to_json(message)


def to_json(value: Any) -> Any:
    """Return a typed message, or a value inside one, as JSON with the protocol's field names."""
    if isinstance(value, typed.protobuf.Any):
        return _any(value)
    if isinstance(value, typed.protobuf.Struct | typed.protobuf.Value | typed.protobuf.ListValue):
        return value.to_dict()
    if isinstance(value, typed.Message):
        fields = {
            name.rstrip("_"): to_json(getattr(value, name))
            for name in value.__dataclass_fields__
            if not name.startswith("_") and value.is_set(name)
        }
        if value._unknown_fields:  # noqa: SLF001 - the library has no public name for them
            fields["@unknown"] = _base64(value._unknown_fields)  # noqa: SLF001
        return fields
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, enum.IntEnum):
        return value.name
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.9f}".rstrip("0").rstrip(".") + "s"
    if isinstance(value, bytes):
        return _base64(value)
    return value


def _any(value: Any) -> dict[str, Any]:
    message = parse_any(value)
    if message is None:
        return {"@type": value.type_url, "value": _base64(value.value)}
    content = to_json(message)
    if isinstance(content, dict) and not isinstance(message, typed.protobuf.Struct):
        return {"@type": value.type_url, **content}
    return {"@type": value.type_url, "value": content}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()

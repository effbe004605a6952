"""RFC 6902 as an API server applies it: all operations or none."""

from __future__ import annotations

import copy
from typing import Any


class PatchError(Exception):
    """An operation cannot be applied, or a test failed."""


def apply(document: Any, operations: list[dict[str, Any]]) -> Any:
    """Return the document with all operations applied; the original is not touched."""
    root = copy.deepcopy(document)
    for each in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in each["path"].split("/")[1:]]
        *way, last = parts
        parent = root
        for part in way:
            parent = _step(parent, part, each["path"])
        match each["op"]:
            case "test":
                found = _step(parent, last, each["path"])
                if found != each["value"] or type(found) is not type(each["value"]):
                    raise PatchError(f"testing value {each['path']} failed: test failed")
            case "replace":
                _step(parent, last, each["path"])
                _put(parent, last, each["value"])
            case "add":
                if isinstance(parent, list):
                    at = len(parent) if last == "-" else int(last)
                    if at > len(parent):
                        raise PatchError(f"add operation does not apply: {each['path']}: index")
                    parent.insert(at, each["value"])
                else:
                    parent[last] = each["value"]
            case "remove":
                _step(parent, last, each["path"])
                del parent[int(last) if isinstance(parent, list) else last]
            case other:
                raise PatchError(f"unexpected kind: {other}")
    return root


def _step(parent: Any, part: str, path: str) -> Any:
    try:
        return parent[int(part)] if isinstance(parent, list) else parent[part]
    except (KeyError, IndexError, ValueError, TypeError):
        raise PatchError(f"doc is missing path: {path}: missing value") from None


def _put(parent: Any, part: str, value: Any) -> None:
    if isinstance(parent, list):
        parent[int(part)] = value
    else:
        parent[part] = value

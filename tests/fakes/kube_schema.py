"""What an API server checks of a document before it stores it: the schemas of CRDs, and a Lease's rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

CRDS = Path(__file__).resolve().parents[1] / "data/istio/crds.yaml"
MICRO_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
}
LEASE = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "holderIdentity": {"type": "string"},
                "leaseDurationSeconds": {"type": "integer"},
                "leaseTransitions": {"type": "integer"},
                "acquireTime": {"type": "string", "format": "micro"},
                "renewTime": {"type": "string", "format": "micro"},
            },
        }
    },
}
ENVELOPE = {"apiVersion", "kind", "metadata"}


def kinds() -> dict[tuple[str, str, str], tuple[str, dict[str, Any]]]:
    """Return kind and schema of every group, version and plural."""
    found = {("coordination.k8s.io", "v1", "leases"): ("Lease", LEASE)}
    for crd in yaml.safe_load_all(CRDS.read_text()):
        spec = crd["spec"]
        for version in spec["versions"]:
            key = (spec["group"], version["name"], spec["names"]["plural"])
            found[key] = (spec["names"]["kind"], version["schema"]["openAPIV3Schema"])
    return found


def unknown(document: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return the paths of fields that the schema does not have."""
    body = {key: value for key, value in document.items() if key not in ENVELOPE}
    return [path.removeprefix(".") for path in _unknown(body, schema, "")]


def wrong(document: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return what is not as the schema says, as the server writes it."""
    body = {key: value for key, value in document.items() if key not in ENVELOPE}
    problems = [f"{path.removeprefix('.')}: {text}" for path, text in _wrong(body, schema, "")]
    if schema is LEASE and (document.get("spec") or {}).get("leaseDurationSeconds", 1) < 1:
        problems.append("spec.leaseDurationSeconds: Invalid value: must be greater than 0")
    return problems


def _unknown(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _unknown(each, schema.get("items", {}), f"{path}[{index}]")
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return
    known, more = schema.get("properties", {}), schema.get("additionalProperties")
    for key, each in value.items():
        if key in known:
            yield from _unknown(each, known[key], f"{path}.{key}")
        elif more is None:
            yield f"{path}.{key}"


def _wrong(value: Any, schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    kind = schema.get("type")
    if value is None and schema.get("nullable"):
        return
    if kind and (
        not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool))
    ):
        said = type(value).__name__
        yield path, f'Invalid value: "{said}": must be of type {kind}: "{said}"'
        return
    if "enum" in schema and value not in schema["enum"]:
        yield path, f'Unsupported value: "{value}": supported values: {schema["enum"]}'
    if schema.get("format") == "micro" and not re.fullmatch(MICRO_TIME, value):
        yield path, f'Invalid value: "{value}": not a MicroTime'
    if "minimum" in schema and value < schema["minimum"]:
        yield (
            path,
            f"Invalid value: {value}: should be greater than or equal to {schema['minimum']}",
        )
    if "minItems" in schema and len(value) < schema["minItems"]:
        yield path, f"Invalid value: {len(value)}: should have at least {schema['minItems']} items"
    if isinstance(value, list):
        for index, each in enumerate(value):
            yield from _wrong(each, schema.get("items", {}), f"{path}[{index}]")
    elif isinstance(value, dict):
        for key in schema.get("required", ()):
            if key not in value:
                yield f"{path}.{key}", "Required value"
        known, more = schema.get("properties", {}), schema.get("additionalProperties")
        for key, each in value.items():
            yield from _wrong(each, known.get(key) or more or {}, f"{path}.{key}")

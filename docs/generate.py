"""Write docs/configuration.md from the schema of the configuration file, or check that it is current.

The text of every key is its own documentation in `xds_server.config`; nothing is written twice.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from xds_server.config.schema import json_schema
from xds_server.config.settings import SETTINGS

TARGET = Path(__file__).resolve().parent / "configuration.md"
HEAD = """# Configuration

One YAML file; `xds-server check-config FILE` names every problem in it with path, value and what was expected.
`xds-server serve FILE` reloads it when it changes (or on SIGHUP); a file with a problem is refused and the last good one stays in force.
`xds-server schema` prints the JSON Schema for editors. This page is made from it by `docs/generate.py`.

"""


def _type(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return what may be written, in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        target = definitions[name]
        if "enum" in target:
            return " or ".join(f"`{value}`" for value in target["enum"])
        return f"[{_title(name)}](#{_title(name).lower().replace(' ', '-')})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            kinds = [each for each in schema[key] if each.get("type") != "null"]
            return " or ".join(_type(each, definitions) for each in kinds)
    if schema.get("type") == "array":
        return "list of " + _type(schema.get("items", {}), definitions)
    limits = [
        f"{sign} {schema[key]:g}"
        for key, sign in (
            ("minimum", "≥"),
            ("exclusiveMinimum", ">"),
            ("maximum", "≤"),
            ("exclusiveMaximum", "<"),
        )
        if key in schema
    ]
    kind = {"object": "mapping", "string": "text"}.get(schema.get("type", ""), schema.get("type"))
    return f"{kind or 'any'} {', '.join(limits)}".strip()


def _title(name: str) -> str:
    """Return the heading of a section: `ModelSection` is "Model section"."""
    spaced = "".join(f" {c.lower()}" if c.isupper() else c for c in name).strip()
    return spaced[0].upper() + spaced[1:]


def _default(schema: dict[str, Any], *, required: bool) -> str:
    if required:
        return "required"
    if "default" not in schema or isinstance(schema["default"], dict):
        return ""
    value = schema["default"]
    return "" if value is None else f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _section(title: str, schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    lines = [f"## {title}", "", schema.get("description", ""), ""]
    lines += ["| key | value | default | meaning |", "|---|---|---|---|"]
    for key, each in schema.get("properties", {}).items():
        cells = (
            f"`{key}`",
            _type(each, definitions),
            _default(each, required=key in schema.get("required", [])),
            " ".join(each.get("description", "").split()),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n\n"


def render() -> str:
    """Return the whole page."""
    schema = json_schema()
    definitions = schema["$defs"]
    page = HEAD + _section("The file", schema, definitions)
    for name, each in definitions.items():
        if "properties" in each:
            page += _section(_title(name), each, definitions)
    rows = "\n".join(
        f"| `{row.flag}` | `{row.env}` | {'' if row.default is None else f'`{row.default}`'} | {row.help} |"
        for row in SETTINGS
    )
    page += "## Settings of the process\n\nA flag wins over the environment, the environment over `server:` in the file.\n\n"
    return page + "| flag | environment | default | meaning |\n|---|---|---|---|\n" + rows + "\n"


def main() -> None:
    """Write the page; with --check only say whether it is current."""
    page = render()
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != page:
            raise SystemExit("docs/configuration.md is stale: make docs")
        return
    TARGET.write_text(page)


if __name__ == "__main__":
    main()

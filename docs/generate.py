"""Write the pages that are made from the code, or check that they are current.

docs/configuration.md comes from the schema of the configuration file, docs/metrics.md from the tables
of metrics, docs/cli.md from the commands' own help. The text of every key and metric is its own documentation there; nothing is written twice.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

import sidecar_agent.metric_table
import xds_server.cli
import xds_server.observability.metric_table
from xds_server.config.schema import json_schema
from xds_server.config.setting_table import SETTINGS

DOCS = Path(__file__).resolve().parent
CONFIGURATION_HEAD = """# Configuration

One YAML file; `xds-server check-config FILE` names every problem in it with path, value and what was expected.
`xds-server serve FILE` reloads it when it changes (or on SIGHUP); a file with a problem is refused and the last good one stays in force.
`xds-server schema` prints the JSON Schema for editors. This page is made from it by `docs/generate.py`.

"""

CLI_MARK = "<!-- What follows is made by docs/generate.py. -->"
CLI_COLUMNS = 110

METRICS_HEAD = """# Metrics

Prometheus text on `/metrics` of the admin port of the control plane (`--admin-listen`) and of the agent (`admin`). This page is made from
`xds_server/observability/metric_table.py` and `sidecar_agent/metric_table.py` by `docs/generate.py`. Alert rules: [alerts.md](alerts.md); dashboard:
[deploy/grafana/dashboard.json](../deploy/grafana/dashboard.json).

- **Missing is not zero**: what is not known has no series.
- The label of an instance of the fleet is `engine_instance`, because Prometheus calls whom it scraped `instance`.
- Of a state (`state`, `freshness`, `health`) only the one that holds has a series, and its value is 1; of a `0 or 1` there is always one.
- Counters start at zero when the process does: use `rate()` and `increase()`.
- Several control planes each tell what they see; the rules take the worst of them (`max by`).
- Histograms have buckets from 0.5 ms to 10 s.

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


def render_configuration() -> str:
    """Return docs/configuration.md."""
    schema = json_schema()
    definitions = schema["$defs"]
    page = CONFIGURATION_HEAD + _section("The file", schema, definitions)
    for name, each in definitions.items():
        if "properties" in each:
            page += _section(_title(name), each, definitions)
    rows = "\n".join(
        f"| `{row.flag}` | `{row.env}` | {'' if row.default is None else f'`{row.default}`'} | {row.help} |"
        for row in SETTINGS
    )
    page += "## Settings of the process\n\nA flag wins over the environment, the environment over `server:` in the file.\n\n"
    return page + "| flag | environment | default | meaning |\n|---|---|---|---|\n" + rows + "\n"


def _metrics(groups: Mapping[str, Mapping[str, Any]]) -> str:
    page = ""
    for title, rows in groups.items():
        page += f"### {title}\n| metric | kind | unit | labels | meaning |\n|---|---|---|---|---|\n"
        for name, row in rows.items():
            labels = ", ".join(f"`{label}`" for label in row.labels)
            page += f"| `{name}` | {row.kind} | {row.unit} | {labels} | {row.help} |\n"
        page += "\n"
    return page


def render_metrics() -> str:
    """Return docs/metrics.md."""
    agent = _metrics(sidecar_agent.metric_table.GROUPS)
    control_plane = _metrics(xds_server.observability.metric_table.GROUPS)
    page = f"{METRICS_HEAD}## Control plane\n\n{control_plane}## Agent\n\n{agent}"
    return page.rstrip("\n") + "\n"


def render_cli() -> str:
    """Return docs/cli.md: the head by hand, then what every command says of itself."""
    head, mark, _ = (DOCS / "cli.md").read_text().partition(CLI_MARK)
    page = head + mark + "\n"
    group: Any = typer.main.get_command(xds_server.cli.app)
    wide = {"terminal_width": CLI_COLUMNS, "max_content_width": CLI_COLUMNS}
    parent = typer.Context(group, info_name="xds-server", **wide)
    return page + "".join(_help(name, each, parent) for name, each in group.commands.items())


def _help(name: str, command: Any, parent: Any) -> str:
    """Return what a command, and every one below it, says of itself."""
    context = typer.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=CLI_COLUMNS,
        max_content_width=CLI_COLUMNS,
    )
    lines = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    title = context.command_path.removeprefix("xds-server ")
    below = getattr(command, "commands", {})
    return f"\n## {title}\n```text\n{lines}\n```\n" + "".join(
        _help(each, inside, context) for each, inside in below.items()
    )


PAGES: dict[str, Callable[[], str]] = {
    "cli.md": render_cli,
    "configuration.md": render_configuration,
    "metrics.md": render_metrics,
}


def main() -> None:
    """Write the pages; with --check only say which are not current."""
    pages = {DOCS / name: render() for name, render in PAGES.items()}
    if "--check" in sys.argv[1:]:
        stale = [
            path.name
            for path, page in pages.items()
            if not path.exists() or path.read_text() != page
        ]
        if stale:
            raise SystemExit(f"stale in docs/: {', '.join(stale)}: make docs")
        return
    for path, page in pages.items():
        path.write_text(page)


if __name__ == "__main__":
    main()

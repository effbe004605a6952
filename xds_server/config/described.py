"""The JSON Schema of sections, with the documentation that is written under their keys.

To read it from the source takes longer than all else at the start of a process, and only the schema
and messages about keys that are missing need it.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from xds_server.config.mirror import Section


class DescribedSchema(GenerateJsonSchema):
    """Generates a schema whose properties have the docstrings of their keys as descriptions."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Make the schema of one section."""
        made = super().model_schema(schema)
        section = cast("type[Section]", schema["cls"])
        docs = documentation(section.documented_by or section)
        for name, each in section.model_fields.items():
            if name in docs:
                made["properties"][each.alias or name]["description"] = docs[name]
        return made


def documentation(section: type[Any]) -> dict[str, str]:
    """Return the docstrings under the attributes of a class and of those it extends, by attribute."""
    own = (
        section.__mro__[: section.__mro__.index(Section)]
        if issubclass(section, Section)
        else (section,)
    )
    docs: dict[str, str] = {}
    for each in reversed(own):
        docs |= _attribute_docs(each)
    return docs


def _attribute_docs(section: type[Any]) -> dict[str, str]:
    """Read the docstrings under the attributes of a class from its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(section)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    docs: dict[str, str] = {}
    for before, node in itertools.pairwise(body):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
        ):
            docs[before.target.id] = inspect.cleandoc(str(node.value.value))
    return docs

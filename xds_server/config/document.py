"""From the text of a configuration file to topology and policy, or to every problem in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import yaml
from pydantic import ValidationError

from xds_server.config import schema, values
from xds_server.config.addresses import parse_address
from xds_server.config.checks import check, doubts
from xds_server.config.config import Config
from xds_server.config.mirror import to_policy
from xds_server.config.names import NAME_PATTERN, NAME_RULE, PATTERN_RULES
from xds_server.config.problems import MISSING, ConfigError, Problem, join
from xds_server.core.limits import Limit, Tenant, TenantName, Tenants
from xds_server.core.model import (
    Affinity,
    AffinityPolicy,
    ClassName,
    Instance,
    InstanceId,
    MaxTokens,
    Model,
    ModelName,
    RequestClass,
    StaticAnswer,
    StaticTemplate,
    Telemetry,
    Tier,
    TierName,
    Topology,
)
from xds_server.core.policy import Policy


def read(text: str, source: str) -> Config:
    """Check the text of a configuration file and make what it describes.

    Args:
        text: The whole file.
        source: What messages call it.

    Raises:
        ConfigError: With every problem found.
    """
    problems: list[Problem] = []
    raw = _parse(text, source, problems)
    document: schema.Document | None = None
    try:
        document = schema.Document.model_validate(raw)
    except ValidationError as error:
        problems.extend(problems_of(error))
    known = {problem.path for problem in problems}
    problems.extend(problem for problem in check(raw) if problem.path not in known)
    if problems or document is None:
        raise ConfigError(source, sorted(problems, key=lambda each: _order(each.path)))
    return Config(
        topology=_topology(document),
        policy=to_policy(Policy, document.policy),
        server=document.server.model_dump(exclude_none=True),
        istio=document.istio,
        text=text,
        doubts=tuple(doubts(raw)),
    )


def _parse(text: str, source: str, problems: list[Problem]) -> dict[str, Any]:
    try:
        raw, duplicates = _read_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "(file)"
        what = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(source, [Problem(where, what, "valid YAML")]) from error
    except RecursionError as error:
        raise ConfigError(source, [Problem("(file)", "nested too deeply", "valid YAML")]) from error
    if not isinstance(raw, dict):
        value = MISSING if raw is None else raw
        raise ConfigError(source, [Problem.of("", value, "a mapping with the key models")])
    problems.extend(duplicates)
    return raw


def _read_yaml(text: str) -> tuple[Any, list[Problem]]:
    loader = _Loader(text)
    try:
        return loader.get_single_data(), loader.duplicates
    finally:
        loader.dispose()


_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """A safe loader that reports keys written twice, where YAML would silently take the last."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.duplicates: list[Problem] = []

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # As it is written: later on the mappings that `<<` names are merged into it.
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if (key.tag, key.value) in seen:
                mark = key.start_mark
                where = f"line {mark.line + 1}, column {mark.column + 1}"
                self.duplicates.append(Problem(where, key.value, "each key once in a mapping"))
            seen.add((key.tag, key.value))
        return node


def problems_of(error: ValidationError) -> Iterator[Problem]:
    """Yield the problems that pydantic found, in the words of this package."""
    for each in error.errors(include_url=False):
        path = ""
        for part in each["loc"]:
            if part not in (values.LIST, values.MAPPING):
                path = join(path, part)
        value = MISSING if each["type"] == "missing" else each["input"]
        yield Problem.of(path, value, _expected(each))


def _expected(error: Any) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return f"required{_described(error['loc'])}"
        case "extra_forbidden":
            return f"no such key; known here: {', '.join(_known_keys(error['loc'][:-1]))}"
        case "greater_than":
            return f"a number above {context['gt']:g}"
        case "greater_than_equal":
            return f"a number of at least {context['ge']:g}"
        case "less_than_equal":
            return f"a number of at most {context['le']:g}"
        case "float_type" | "finite_number":
            return "a number"
        case "int_type" | "int_from_float":
            return "a whole number"
        case "bool_type":
            return "true or false"
        case "string_type":
            return "text"
        case "list_type" | "tuple_type":
            return "a list"
        case "model_type" | "dict_type" | "model_attributes_type":
            return "a mapping"
        case "too_short":
            return "at least one entry"
        case "string_too_long":
            return f"at most {context['max_length']} characters"
        case "string_too_short":
            return "text that is not empty"
        case "string_pattern_mismatch":
            if context["pattern"] == NAME_PATTERN:
                return f"a name: {NAME_RULE}"
            if context["pattern"] in PATTERN_RULES:
                return PATTERN_RULES[context["pattern"]]
            if context["pattern"] == values.HEADER_PATTERN:
                return "the name of a header"
            if context["pattern"] == values.LANGUAGE_PATTERN:
                return "a language as in Accept-Language, like de or pt-BR"
            return "a path that starts with /"
        case "literal_error" | "enum":
            return f"one of {context['expected']}"
        case "value_error":
            return str(context["error"])
        case _:
            return str(error["msg"])


def _described(loc: tuple[Any, ...]) -> str:
    node = _schema_at(loc)
    text = node.get("description", "") if node else ""
    return f": {text.splitlines()[0].rstrip('.')}" if text else ""


def _known_keys(loc: tuple[Any, ...]) -> list[str]:
    node = _schema_at(loc) or {}
    return list(node.get("properties", {}))


def _schema_at(loc: tuple[Any, ...]) -> dict[str, Any] | None:
    root = schema.json_schema()
    nodes = [root]
    for part in loc:
        if part in (values.LIST, values.MAPPING):
            continue
        key = "items" if isinstance(part, int) else part
        nodes = [
            found
            for node in nodes
            for found in (
                [node["items"]] if key == "items" and "items" in node else [],
                [node["properties"][key]] if key in node.get("properties", {}) else [],
            )
            for found in found
        ]
        nodes = [branch for node in nodes for branch in _branches(root, node)]
    own = [node for node in nodes if "properties" in node]
    found = own or nodes
    return found[0] if found else None


def _branches(root: dict[str, Any], node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if "$ref" in node:
        yield from _branches(root, root["$defs"][node["$ref"].rsplit("/", 1)[-1]])
    for name in ("anyOf", "oneOf"):
        for branch in node.get(name, ()):
            yield from _branches(root, branch)
    if "$ref" not in node:
        yield node


def _order(path: str) -> tuple[Any, ...]:
    """Sort problems as the file is read: by list index as a number, not as text."""
    parts = path.replace("]", "").replace("[", ".").split(".")
    return tuple((1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts)


def _topology(document: schema.Document) -> Topology:
    return Topology(
        models=tuple(_model(each) for each in document.models),
        listener_host=document.listener.address,
        listener_port=document.listener.port,
        tenants=_tenants(document.tenants),
        lists_models=document.listener.lists_models,
        classes=tuple(
            _class(each, index, len(document.classes))
            for index, each in enumerate(document.classes)
        ),
    )


_HEADER_TIMEOUTS_S = (2.0, 5.0, 15.0)
_RETRIES = (0, 1, 3)
"""Of the first class, those between, and the last: what matters most cannot wait."""


def _class(section: schema.ClassSection, index: int, count: int) -> RequestClass:
    rank = 0 if index == 0 else 2 if index == count - 1 else 1
    match = section.match or schema.ClassMatch()
    timeout_s, retries = section.header_timeout_s, section.retries
    return RequestClass(
        name=ClassName(section.name),
        header=match.header.lower() if match.header else None,
        value=match.value,
        prefix=match.prefix,
        header_timeout_s=_HEADER_TIMEOUTS_S[rank] if timeout_s is None else timeout_s,
        retries=_RETRIES[rank] if retries is None else retries,
        demand_ratio=section.demand_ratio,
        quota_ratio=section.quota_ratio,
        when_critical=section.when_critical,
    )


def _model(section: schema.ModelSection) -> Model:
    return Model(
        name=ModelName(section.name),
        tiers=tuple(_tier(each, section) for each in section.tiers),
        domains=tuple(section.match.domains),
        prefix=section.match.prefix,
        names=tuple(section.match.models or ()),
        is_default=section.match.default,
        limit=_limit(section.limit),
    )


def _limit(section: schema.RateLimit) -> Limit:
    return Limit(**section.model_dump())


def _tenants(section: schema.TenantsSection | None) -> Tenants | None:
    if section is None:
        return None
    return Tenants(
        header=section.header.lower(),
        hashed=section.hashed,
        others=_limit(section.others),
        missing=_limit(section.missing),
        listed=tuple(
            Tenant(name=TenantName(each.name), key=each.key, limit=_limit(each.limit))
            for each in section.listed
        ),
    )


def _tier(section: schema.TierSection, model: schema.ModelSection) -> Tier:
    listed = section.instances
    answer = section.answer
    short = section.max_tokens
    return Tier(
        affinity=_affinity(section.affinity),
        health_path=section.health_path,
        telemetry=Telemetry(section.telemetry or model.telemetry)
        if section.answer is None
        else Telemetry.AGENTS,
        name=TierName(section.name),
        # A static answer is no model's: clients shall see that in `x-served-model`.
        serves=section.serves or (section.name if answer else model.name),
        instances=tuple(_instance(each) for each in listed) if isinstance(listed, list) else (),
        discovers=isinstance(listed, schema.Discover),
        limit=_limit(section.limit),
        max_tokens=MaxTokens(scale=short.scale, floor=short.floor, when_absent=short.when_absent)
        if short
        else None,
        answer=_answer(answer) if answer else None,
    )


def _answer(section: schema.Answer) -> StaticAnswer:
    templates = tuple(
        StaticTemplate(
            name=each.name,
            answer=_said(each),
            keywords=tuple(each.when.keywords),
            classes=tuple(ClassName(name) for name in each.when.classes),
            languages=tuple(each.when.languages),
        )
        for each in section.templates
    )
    return replace(_said(section), templates=templates)


def _said(section: schema.StaticText) -> StaticAnswer:
    return StaticAnswer(
        status=section.status, body=section.json_, retry_after_s=section.retry_after_s
    )


def _instance(section: schema.InstanceSection) -> Instance:
    host, port = parse_address(section.address)
    return Instance(id=InstanceId(section.name), host=host, port=port, capacity=section.capacity)


def _affinity(section: schema.AffinitySection | None) -> Affinity | None:
    if section is None:
        return None
    return Affinity(
        policy=AffinityPolicy(section.policy),
        header=section.header.lower() if section.header else None,
        cookie=section.cookie,
        cookie_ttl_s=section.cookie_ttl_s,
        overflow_ratio=section.overflow_ratio,
    )

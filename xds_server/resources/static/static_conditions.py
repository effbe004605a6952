"""Which template of a static tier fits a request: its class, its language, and the keywords in its prompt.

Classes and languages are copied from headers to metadata, because only there a route can say "one of these": a
pattern of all of them is refused by Envoy when it gets long (RE2 program size, 100), and a route of its own for each
would carry the answer again. A filter that no template needs is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from xds_server.core.model import StaticTemplate
from xds_server.resources.names import METADATA
from xds_server.resources.proto import pack, typed
from xds_server.resources.routing.request_classes import CLASS_HEADER
from xds_server.resources.static import keywords

LANGUAGE_HEADER = "accept-language"
_CLASS, _LANGUAGE = "class", "language"

BEST_LANGUAGE = (
    r"^(?:[ -+\--~]*; *q=0[0-9.]* *,)*"  # entries that say less than 1
    r" *([A-z0-9-]+) *"
    r"(?:; *q=1[0.]* *)?(?:,.*)?$"
)
"""The first language whose quality is 1, which is meant where none is told, in an Accept-Language header.

A header without one stays as it is: then the first listed is what counts.
"""


def condition_filters(templates: Sequence[StaticTemplate]) -> list[Any]:
    """Return the filters that find out what the templates' conditions need."""
    rules = []
    if any(each.classes for each in templates):
        rules.append(_rule(CLASS_HEADER, _CLASS))
    if any(each.languages for each in templates):
        rules.append(_rule(LANGUAGE_HEADER, _LANGUAGE, rewrite=BEST_LANGUAGE))
    return [*_header_facts(rules), *keywords.keyword_filter(templates)]


def conditions(template: StaticTemplate) -> dict[str, list[Any]]:
    """Return the conditions of a template, all of which must hold, as arguments of a `RouteMatch`."""
    m = typed.matcher
    metadata, found = [], []
    if template.classes:
        classes = [m.StringMatcher(exact=each) for each in template.classes]
        metadata.append(_one_of(_CLASS, classes))
    if template.languages:
        metadata.append(_one_of(_LANGUAGE, list(_like(template.languages))))
    if template.keywords:
        names = m.StringMatcher(contains=f" {template.name} ")
        found.append(typed.route.HeaderMatcher(name=keywords.HEADER, string_match=names))
    return {"headers": found, "dynamic_metadata": metadata}


def _like(languages: Sequence[str]) -> Iterator[Any]:
    """Yield what a language is written like: by itself, with a region, or before the rest of the header."""
    m = typed.matcher
    for each in languages:
        yield m.StringMatcher(exact=each, ignore_case=True)
        for end in "-;, ":
            yield m.StringMatcher(prefix=f"{each}{end}", ignore_case=True)


def _one_of(key: str, texts: Sequence[Any]) -> Any:
    m = typed.matcher
    values = [m.ValueMatcher(string_match=each) for each in texts]
    value = m.ValueMatcher(or_match=m.OrMatcher(value_matchers=values)) if values[1:] else values[0]
    path = [m.MetadataMatcherPathSegment(key=key)]
    return m.MetadataMatcher(filter=METADATA, path=path, value=value)


def _rule(header: str, key: str, *, rewrite: str | None = None) -> Any:
    h, m = typed.header_to_metadata, typed.matcher
    pair = h.ConfigKeyValuePair(metadata_namespace=METADATA, key=key)
    if rewrite is not None:
        pair.regex_value_rewrite = m.RegexMatchAndSubstitute(
            pattern=m.RegexMatcher(regex=rewrite), substitution=r"\1"
        )
    return h.ConfigRule(header=header, on_header_present=pair)


def _header_facts(rules: list[Any]) -> list[Any]:
    if not rules:
        return []
    config = typed.header_to_metadata.Config(request_rules=rules)
    name = "envoy.filters.http.header_to_metadata"
    return [typed.hcm.HttpFilter(name=name, typed_config=pack(config))]

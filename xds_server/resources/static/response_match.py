"""Conditions on a response, for filters that answer in its place."""

from __future__ import annotations

from typing import Any

from xds_server.resources import headers
from xds_server.resources.bodies import path_kind
from xds_server.resources.bodies.request_facts import Fact
from xds_server.resources.names import METADATA
from xds_server.resources.proto import pack, typed
from xds_server.resources.static.answer import Dialect


def extension(name: str, message: Any) -> Any:
    """Wrap a message the way matchers name their inputs and actions."""
    return typed.xds_core.TypedExtensionConfig(name=name, typed_config=pack(message))


def is_5xx() -> Any:
    """Author "the status is a 5xx", an engine's or the proxy's own."""
    return _single(
        extension("status", typed.matcher.HttpResponseStatusCodeClassMatchInput()),
        value_match=typed.xds_matcher.StringMatcher(exact="5xx"),
    )


def is_engines(code: int) -> Any:
    """Author "a tier answered so": a limiter of this proxy, and what it says of itself, names no tier."""
    status = _single(
        extension("status", typed.matcher.HttpResponseStatusCodeMatchInput()),
        value_match=typed.xds_matcher.StringMatcher(exact=str(code)),
    )
    return both(status, has(headers.SERVED_MODEL))


def header_ends(name: str, suffix: str) -> Any:
    """Author "the response header ends so"."""
    return _header(name, typed.xds_matcher.StringMatcher(suffix=suffix))


def header_is(name: str, value: str) -> Any:
    """Author "the response header is this"."""
    return _header(name, typed.xds_matcher.StringMatcher(exact=value))


def has(name: str) -> Any:
    """Author "the response has such a header, and it is not empty"."""
    anything = typed.xds_matcher.RegexMatcher(
        google_re2=typed.xds_matcher.RegexMatcherGoogleRe2(), regex=".+"
    )
    return _header(name, typed.xds_matcher.StringMatcher(safe_regex=anything))


def lacks(name: str) -> Any:
    """Author the opposite of `has`."""
    return typed.xds_matcher.MatcherMatcherListPredicate(not_matcher=has(name))


def asks_for_stream() -> Any:
    """Author "the request's body said `stream: true`", where it was read."""
    return _metadata_is(Fact.STREAM.value, typed.matcher.ValueMatcher(bool_match=True))


def path_is_of(dialect: Dialect) -> Any:
    """Author "the request asked for a completion in this dialect", where `notes_filter` noted the path."""
    ending = typed.matcher.StringMatcher(exact=path_kind.ENDINGS[dialect])
    return _metadata_is(path_kind.KEY, typed.matcher.ValueMatcher(string_match=ending))


def both(one: Any, other: Any) -> Any:
    """Author "this and that"."""
    x = typed.xds_matcher
    return x.MatcherMatcherListPredicate(
        and_matcher=x.MatcherMatcherListPredicatePredicateList(predicate=[one, other])
    )


def either(one: Any, other: Any) -> Any:
    """Author "this or that"."""
    x = typed.xds_matcher
    return x.MatcherMatcherListPredicate(
        or_matcher=x.MatcherMatcherListPredicatePredicateList(predicate=[one, other])
    )


def when(predicate: Any, then: Any) -> Any:
    """Author one line of a list of cases.

    Args:
        predicate: the condition.
        then: what to do, or a `Matcher` that looks further.
    """
    x = typed.xds_matcher
    is_matcher = isinstance(then, x.Matcher)
    on_match = x.MatcherOnMatch(matcher=then) if is_matcher else x.MatcherOnMatch(action=then)
    return x.MatcherMatcherListFieldMatcher(predicate=predicate, on_match=on_match)


def first_of(cases: list[Any]) -> Any:
    """Author a list of cases of which the first that holds counts."""
    x = typed.xds_matcher
    return x.Matcher(matcher_list=x.MatcherMatcherList(matchers=cases))


def otherwise(matcher: Any, action: Any) -> Any:
    """Give a list of cases what to do when none of them holds."""
    matcher.on_no_match = typed.xds_matcher.MatcherOnMatch(action=action)
    return matcher


def _metadata_is(key: str, value: Any) -> Any:
    network = typed.network_inputs
    segment = network.DynamicMetadataInputPathSegment(key=key)
    fact = network.DynamicMetadataInput(filter=METADATA, path=[segment])
    custom = extension("is", typed.metadata_matcher.Metadata(value=value))
    return _single(extension(key, fact), custom_match=custom)


def _header(name: str, value: Any) -> Any:
    given = typed.matcher.HttpResponseHeaderMatchInput(header_name=name)
    return _single(extension("header", given), value_match=value)


def _single(given: Any, **match: Any) -> Any:
    x = typed.xds_matcher
    single = x.MatcherMatcherListPredicateSinglePredicate(input=given, **match)
    return x.MatcherMatcherListPredicate(single_predicate=single)

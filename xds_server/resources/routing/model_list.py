"""`GET /v1/models`, and HEAD: the names that clients may ask for, answered by proxies in OpenAI's shape.

Each name, aliases too, is a model of its own in the list, as vLLM lists its served names. The list of a virtual
host stands where clients with its base URL look: behind the `v1` of its models' prefixes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from xds_server.core.model import Model
from xds_server.resources.errors import error_body
from xds_server.resources.names import MODELS_ROUTE
from xds_server.resources.proto import Route, RouteConfiguration, typed
from xds_server.resources.routing.model_routing import answer, method

OWNER = "gpu-xds"
VERSION_SEGMENT = "/v1/"


def list_path(prefix: str) -> str:
    """Return where the list of the models with a prefix is."""
    before, found, _ = prefix.partition(VERSION_SEGMENT)
    return f"{before if found else prefix.rstrip('/')}{VERSION_SEGMENT}models"


def model_list_routes(models: Sequence[Model]) -> Iterator[Route]:
    """Yield the routes of the lists of a virtual host; they come before the models' own."""
    by_path: dict[str, list[str]] = {}
    for model in models:
        by_path.setdefault(list_path(model.prefix), []).extend(model.public_names)
    get = _looks()
    r = typed.route
    for path, names in by_path.items():
        entries = {name: _entry(name) for name in sorted(names)}
        document = json.dumps({"object": "list", "data": [*entries.values()]})
        yield answer(MODELS_ROUTE, r.RouteMatch(path=path, headers=get), 200, document)
        for name, entry in entries.items():
            for spelled in dict.fromkeys((name, quote(name, safe="/"), quote(name, safe=""))):
                match = r.RouteMatch(path=f"{path}/{spelled}", headers=get)
                yield answer(MODELS_ROUTE, match, 200, json.dumps(entry))
        missing = error_body(
            "This model does not exist.",
            kind="invalid_request_error",
            param="model",
            code="model_not_found",
        )
        yield answer(MODELS_ROUTE, r.RouteMatch(prefix=f"{path}/", headers=get), 404, missing)


def _looks() -> list[Any]:
    """Author the conditions that a request is a GET or HEAD.

    Envoy asks them of every request before it looks at the path; completions fail the first, which is no expression.
    """
    completes, expression = method("POST"), typed.matcher.RegexMatcher(regex="GET|HEAD")
    completes.invert_match = True
    looks = typed.matcher.StringMatcher(safe_regex=expression)
    return [completes, typed.route.HeaderMatcher(name=":method", string_match=looks)]


def _entry(name: str) -> dict[str, Any]:
    # OpenAI's clients want a time of creation; nobody knows one.
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}


def longest_body(table: RouteConfiguration) -> int:
    """Return the length in bytes of the longest answer in a table that proxies give by themselves."""
    return max((len(text.encode()) for text in _bodies(table)), default=0)


def _bodies(table: RouteConfiguration) -> Iterable[str]:
    for host in table.virtual_hosts:
        for route in host.routes:
            yield route.direct_response.body.inline_string

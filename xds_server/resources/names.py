"""The names of everything that is served; proxies, statistics and access logs show them."""

from __future__ import annotations

from xds_server.core.model import ModelName, TierName

CONTROL_PLANE = "xds"
"""The cluster of a proxy's bootstrap that leads here."""
LISTENER_NAME = "llm"
ROUTE_CONFIG_NAME = "llm"
GATE_ROUTE = "/gate"
"""The route inside a gate; an entry in the access log with this name is about one attempt."""
MODELS_ROUTE, UNCOUNTED_ROUTE = "/models", "/uncounted"
UNKNOWN_MODEL_ROUTE, NO_MODEL_ROUTE = "/model_not_found", "/model_missing"
ANSWERED_ROUTES = frozenset({MODELS_ROUTE, UNKNOWN_MODEL_ROUTE, NO_MODEL_ROUTE, UNCOUNTED_ROUTE})
"""Routes that lead to no model: proxies answer by themselves with the list of models, or with what is wrong. Other routes
are called like their model, which no name with a slash in front can be."""
METADATA = "llm"
"""Namespace of the metadata on endpoints and requests."""


def cluster_name(model: ModelName, tier: TierName) -> str:
    """Name a tier's cluster; its endpoints are served under the same name."""
    return f"{model}/{tier}"


def chain_name(model: ModelName, tier: TierName, repeats: int = 0) -> str:
    """Name the chain that starts at a tier and walks down to the static one.

    Args:
        model: Whose chain it is.
        tier: Where it starts.
        repeats: How often it tries that tier again before it goes on.
    """
    return f"{model}/{tier}/chain" + (f"/{repeats}" if repeats else "")


def static_listener_name(model: ModelName) -> str:
    """Name the internal listener that gives a model's static answer."""
    return f"static/{model}"

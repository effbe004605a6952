"""What each tier's engines shall read in place of the body that the client sent.

A tier that serves another name than clients call, or that shortens answers, has an *instruction* in the
metadata of its endpoints. Per attempt, a filter of the chain copies it into a request header, and the Lua
behind it obeys and drops the header: so a request that fails over is rewritten again, from what the client sent,
for the tier that it then goes to. The instruction travels with the endpoints, and the filters are the same
for all chains that need them: changing a name or a scale changes no cluster.

Lua, because nothing else of Envoy rewrites a body per attempt and leaves every other byte as it was.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from xds_server.core.model import Model, Tier
from xds_server.core.policy import RewritePolicy
from xds_server.resources.lua import lua_filter, program
from xds_server.resources.names import METADATA
from xds_server.resources.proto import typed

HEADER = "x-fleet-rewrite"
"""Between the two filters only: a client's own is removed, and engines do not see it."""
KEY = "rewrite"
"""Of the instruction, in the endpoints' metadata."""
ROOM_BYTES = 64 * 1024
"""By as much a body of the greatest size may grow. Envoy takes the listener's limit for the filters of an attempt
too, whatever the clusters say (seen on 1.40), and answers 413 to a body that a filter makes longer."""
_NONE = "-"


def renames(model: Model, tier: Tier) -> bool:
    """Whether requests may name another model than the tier's engines answer to.

    A model without names of its own takes whatever name a request has. There, a tier that serves the model's
    own name gets the request's: so an adapter of that tier's engines can be asked for.
    """
    if tier.is_static:
        return False
    strangers = bool(model.names) and model.is_default
    return strangers or set(model.public_names) != {tier.serves}


def is_rewritten(model: Model, tier: Tier) -> bool:
    """Whether bodies are not passed to this tier as they come."""
    return renames(model, tier) or (not tier.is_static and tier.max_tokens is not None)


def any_is_rewritten(model: Model, tiers: Sequence[Tier]) -> bool:
    """Whether a chain of these tiers needs the filters."""
    return any(is_rewritten(model, tier) for tier in tiers)


def instruction(model: Model, tier: Tier, policy: RewritePolicy) -> str:
    """Return what the Lua reads: `<unreadable> <scale> <floor> <when absent> <name as a JSON string>`.

    "-" stands for what does not apply, and nothing for a name that stays. Empty = the body stays as it is.
    """
    if not is_rewritten(model, tier):
        return ""
    limits = [_NONE, _NONE, _NONE]
    if tier.max_tokens is not None:
        short = tier.max_tokens
        absent = _NONE if short.when_absent is None else str(short.when_absent)
        limits = [repr(short.scale), str(short.floor), absent]
    name = json.dumps(tier.serves) if renames(model, tier) else ""
    return " ".join([policy.unreadable.value, *limits, name]).rstrip()


def instruct() -> list[Any]:
    """Return the request mutations that tell the Lua what to do; none of the endpoint's: no header."""
    mutation = typed.mutation_rules.HeaderMutation
    option = typed.core.HeaderValueOption(
        header=typed.core.HeaderValue(key=HEADER, value=f"%UPSTREAM_METADATA({METADATA}:{KEY})%"),
        append_action=typed.core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )
    return [mutation(remove=HEADER), mutation(append=option)]


def rewrite_filter() -> Any:
    """Return the Lua filter. It comes after the one that carries `instruct`."""
    return lua_filter(program("bodies/outline.lua", "bodies/rewrite.lua"))

from __future__ import annotations

import pytest

from xds_server.core.model import (
    Instance,
    InstanceId,
    Model,
    ModelName,
    StaticAnswer,
    Tier,
    TierName,
    Topology,
)


@pytest.fixture
def topology():
    """Make a topology of one model with these instances in its first tier."""

    def make(*names: str) -> Topology:
        instances = tuple(
            Instance(id=InstanceId(name), host="10.0.0.1", port=8000 + index)
            for index, name in enumerate(names)
        )
        tiers = (
            Tier(name=TierName("primary"), serves="big", instances=instances),
            Tier(name=TierName("static"), serves="big", answer=StaticAnswer()),
        )
        return Topology(models=(Model(name=ModelName("chat"), tiers=tiers),))

    return make

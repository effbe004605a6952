"""A picker without a control plane behind it: a test says what the plan is."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tests.fakes.plans import a_plan
from xds_server.core.model import Topology
from xds_server.core.policy import Unreadable
from xds_server.istio.picker.decide import Desk, PickerOptions
from xds_server.istio.picker.server import PickerServer
from xds_server.observability.metrics import Tally


def a_desk(
    topology: Topology,
    split: Sequence[int] | None = None,
    *,
    options: PickerOptions | None = None,
    unreadable: Unreadable = Unreadable.REFUSE,
    seed: int = 1,
    **numbers: object,
) -> Desk:
    """Make a desk that has heard one plan; see `a_plan` for the numbers."""
    desk = Desk(
        options=options or PickerOptions(),
        chance=random.Random(seed).random,
        tally=Tally(),
        unreadable=lambda: unreadable,
    )
    desk.heard(topology, a_plan(topology, split, **numbers))
    return desk


@asynccontextmanager
async def running_picker(desk: Desk) -> AsyncIterator[PickerServer]:
    """Serve a desk on a free port for as long as the block lasts."""
    server = PickerServer(desk)
    server.listen("127.0.0.1", 0)
    await server.start()
    server.set_ready(ready=True)
    try:
        yield server
    finally:
        await server.stop(0)

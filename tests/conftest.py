from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.fakes.plans import one_tier

_UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
"""What takes long on a busy machine is no fault of what is tested."""
settings.register_profile("same", derandomize=True, **_UNHURRIED)
settings.register_profile("search", **_UNHURRIED)
settings.load_profile("same")

# A shell that runs the tests in its background has them ignore Ctrl-C, and what they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def topology():
    """Make a topology of one model with these instances in its first tier."""
    return one_tier

"""Limits by tokens and requests on a real Envoy 1.40, through the xDS server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.limits_lab import limits_lab
from xds_server.core.limits import Limit
from xds_server.core.policy import AdmissionPolicy

pytestmark = pytest.mark.envoy


def bucket_of(per_second: float, *, tokens: float) -> AdmissionPolicy:
    """Return the policy whose bucket for a limit holds so many tokens."""
    return AdmissionPolicy(burst_s=tokens / per_second, largest_request_tokens=1)


@pytest.mark.parametrize("delta", [False, True], ids=["GRPC", "DELTA_GRPC"])
async def test_a_model_admits_no_more_tokens_than_its_limit(tmp_path: Path, delta: bool) -> None:
    limit, policy = Limit(tokens_per_second=10), bucket_of(10, tokens=500)
    async with limits_lab(tmp_path, limit=limit, admission=policy, delta=delta) as lab:
        replies = [await lab.ask(b'{"max_tokens": 90}') for _ in range(8)]
        assert [each.status for each in replies] == [200] * 5 + [429] * 3
        await lab.assert_all_accepted()
        refused = replies[-1]
        assert refused.error["code"] == "rate_limit_exceeded"
        assert refused.headers["content-type"] == "application/json"
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-degrade-reason"] == "rate_limited"

"""Limits by tokens and requests on a real Envoy 1.40, through the xDS server."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.extensions.filters.http.local_ratelimit.v3.local_rate_limit_pb2 import LocalRateLimit

from tests.fakes.envoy import eventually
from tests.fakes.limits_lab import JSON, limits_lab
from tests.fakes.plans import a_plan
from xds_server.core.limits import Limit
from xds_server.core.policy import AdmissionPolicy
from xds_server.core.shares import RESERVE
from xds_server.resources.capability import Capability
from xds_server.resources.snapshot import EXTENSION_CONFIG, Resource, Snapshot, TypeSnapshot
from xds_server.xds.syncz import SyncState, TypeStatus

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


@pytest.mark.parametrize("capability", [Capability.COMPOSITE, Capability.AGGREGATE])
async def test_what_is_over_a_tiers_limit_goes_on_to_the_static_answer(
    tmp_path: Path, capability: Capability
) -> None:
    limit, policy = Limit(tokens_per_second=10), bucket_of(10, tokens=500)
    async with limits_lab(tmp_path, fallback=limit, admission=policy, capability=capability) as lab:
        lab.big.mode = "500"
        replies = [await lab.ask(b'{"max_tokens": 90}') for _ in range(8)]
        assert [each.status for each in replies] == [200] * 8
        assert [each.served for each in replies] == ["llama-3-8b"] * 5 + ["static"] * 3
        # What the control plane sends there counts in the same bucket.
        lab.plan((0, 100, 0))
        replies = [await lab.ask(b'{"max_tokens": 90}') for _ in range(3)]
        assert [each.served for each in replies] == ["static"] * 3
        await lab.assert_all_accepted()


async def test_concurrency_beyond_a_tiers_limit_goes_on_to_the_next_tier(tmp_path: Path) -> None:
    async with limits_lab(tmp_path, primary=Limit(concurrency=2)) as lab:
        lab.big.plain_s = 0.4
        replies = await lab.ask_at_once(6)
        assert [each.status for each in replies] == [200] * 6
        served = sorted(each.served or "" for each in replies)
        assert served == ["llama-3-70b"] * 2 + ["llama-3-8b"] * 4
        await lab.assert_all_accepted()


async def test_a_queue_holds_what_it_may_and_the_rest_goes_on(tmp_path: Path) -> None:
    async with limits_lab(tmp_path, primary=Limit(concurrency=2, queue=3)) as lab:
        await lab.ask()
        lab.big.plain_s = 0.3
        replies = await lab.ask_at_once(8)
        served = sorted(each.served or "" for each in replies)
        assert served.count("llama-3-70b") in (4, 5)  # One connection is there already, or two.
        assert served.count("llama-3-8b") == 8 - served.count("llama-3-70b")


async def test_a_short_queue_keeps_nobody_from_a_tier_that_has_room(tmp_path: Path) -> None:
    async with limits_lab(tmp_path, primary=Limit(concurrency=10, queue=2)) as lab:
        lab.big.plain_s = 0.3
        replies = await lab.ask_at_once(10)
        assert [each.served for each in replies] == ["llama-3-70b"] * 10
        # Those that wait for a connection to be made count as waiting, so it is `concurrency` that may wait.
        served = [each.served for each in await lab.ask_at_once(30)]
        assert 10 <= served.count("llama-3-70b") <= 20


async def test_a_hung_engine_behind_a_gate_is_ejected(tmp_path: Path) -> None:
    async with limits_lab(tmp_path, primary=Limit(requests_per_second=1000)) as lab:
        lab.big.mode = "hang"
        first = await lab.ask()
        assert (first.status, first.served) == (200, "llama-3-8b")
        assert first.headers["x-degrade-reason"]
        await lab.ask_at_once(3)
        assert await lab.is_ejected("primary")
        seen = lab.big.requests
        assert (await lab.ask()).served == "llama-3-8b"
        assert lab.big.requests == seen, "nobody waits for it again"


async def test_streams_pass_a_gate_and_a_strict_request_is_told_of_its_limit(
    tmp_path: Path,
) -> None:
    limit, policy = Limit(tokens_per_second=10), bucket_of(10, tokens=100)
    async with limits_lab(tmp_path, primary=limit, admission=policy) as lab:
        body = b'{"stream": true, "max_tokens": 60}'
        streamed = await lab.ask(body)
        assert streamed.headers["content-type"] == "text/event-stream"
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert streamed.served == "llama-3-70b"
        strict = await lab.ask(body, headers={**JSON, "x-no-fallback": "true"})
        assert strict.status == 429
        assert strict.error["code"] == "rate_limited"
        assert int(strict.headers["retry-after"]) >= 1
        assert (await lab.ask(body)).served == "llama-3-8b"
        await lab.assert_all_accepted()


async def test_weight_pushes_never_refill_a_bucket(tmp_path: Path) -> None:
    limit, policy = Limit(tokens_per_second=10), bucket_of(10, tokens=500)
    async with limits_lab(tmp_path, limit=limit, fallback=limit, admission=policy) as lab:
        replies = []
        for share in range(10):
            lab.plan((100 - share, share, 0))
            replies.append(await lab.ask(b'{"max_tokens": 90}'))
            await asyncio.sleep(0.02)
        assert [each.status for each in replies] == [200] * 5 + [429] * 5
        await lab.assert_all_accepted()


async def test_two_proxies_share_a_limit_and_the_one_that_stays_gets_it_all(
    tmp_path: Path,
) -> None:
    policy = AdmissionPolicy(
        burst_s=500, largest_request_tokens=1, settle_s=0.5, absent_s=0.5, divisions_every_s=1
    )
    async with limits_lab(
        tmp_path,
        limit=Limit(tokens_per_second=1),
        admission=policy,
        proxies=("one", "two"),
        divided=True,
    ) as lab:

        async def parts_are(*parts: float) -> bool:
            return sorted(part or 0.0 for part in lab.parts().values()) == list(parts)

        await eventually(lambda: parts_are(0.5, 0.5), what="two equal parts")
        await lab.settle()
        assert [await lab.admitted("one", of=12), await lab.admitted("two", of=12)] == [5, 5]
        await lab.envoys["two"].stop()
        await eventually(lambda: parts_are(1.0), what="one part")
        await lab.settle()
        assert await lab.admitted("one", of=12) == 10
        assert await lab.envoys["one"].rejected() == {}


async def test_newcomers_right_after_a_division_admit_half_of_somebodys_part_and_no_other_bucket_moves(
    tmp_path: Path,
) -> None:
    policy = AdmissionPolicy(
        burst_s=500,
        largest_request_tokens=1,
        settle_s=0.2,
        divisions=10,  # the first two may come one after the other, too
        divisions_every_s=1000,
    )
    async with limits_lab(
        tmp_path,
        limit=Limit(tokens_per_second=1),
        admission=policy,
        proxies=("one", "two"),
        divided=True,
    ) as lab:

        async def parts_are(**parts: float) -> bool:
            return lab.parts() == parts

        await eventually(lambda: parts_are(one=0.5, two=0.5), what="two equal parts")
        await lab.settle()
        assert await lab.admitted("two", of=7) == 5
        await lab.start("three")
        await eventually(lambda: parts_are(one=0.25, two=0.5, three=0.25), what="a newcomer's part")
        await lab.settle()
        assert [await lab.admitted("one", of=7), await lab.admitted("three", of=7)] == [2, 2]
        assert await lab.admitted("two", of=7) == 0, "its bucket is as it was"
        await lab.start("four")
        quarters = dict.fromkeys(("one", "two", "three", "four"), 0.25)
        await eventually(lambda: parts_are(**quarters), what="another's part")
        await lab.settle()
        assert await lab.admitted("four", of=7) == 2
        await lab.assert_all_accepted()


async def test_a_newcomer_is_given_nothing_that_a_slow_proxy_may_still_be_admitting(
    tmp_path: Path,
) -> None:
    policy = AdmissionPolicy(
        burst_s=500, largest_request_tokens=1, settle_s=0.2, absent_s=600.0, divisions_every_s=1000
    )
    async with limits_lab(
        tmp_path, limit=Limit(tokens_per_second=1), admission=policy, divided=True
    ) as lab:
        assert lab.divider is not None

        async def are_served(**parts: float) -> bool:
            return lab.parts() == parts

        await eventually(lambda: are_served(one=1.0), what="the whole for the first")
        await lab.settle()
        os.kill(lab.envoys["one"].pid, signal.SIGSTOP)
        try:
            await lab.start("two")

            async def is_divided() -> bool:
                assert lab.divider is not None
                return dict(lab.divider.parts) == {"one": 0.5, "two": 0.5}

            await eventually(is_divided, what="two equal parts")
            await eventually(lambda: are_served(one=0.5, two=RESERVE / 2), what="less for one")
            assert (await lab.ask(b'{"max_tokens": 44}', proxy="two")).status == 429
            assert lab.parts()["two"] == RESERVE / 2
        finally:
            os.kill(lab.envoys["one"].pid, signal.SIGCONT)
        await eventually(lambda: are_served(one=0.5, two=0.5), what="more for two")
        await lab.settle()
        replies = [await lab.ask(b'{"max_tokens": 44}', proxy="two") for _ in range(7)]
        assert [each.status for each in replies] == [200] * 5 + [429] * 2
        await lab.assert_all_accepted()


@pytest.mark.parametrize("status", ["503", "429"])
async def test_an_engine_that_says_not_now_is_never_ejected(tmp_path: Path, status: str) -> None:
    async with limits_lab(tmp_path) as lab:
        lab.big.mode = status
        replies = [await lab.ask() for _ in range(8)]
        assert {(each.status, each.served) for each in replies} == {(200, "llama-3-8b")}
        assert lab.big.requests == 8
        lab.big.mode = "ok"
        assert (await lab.ask()).served == "llama-3-70b"
        lab.big.mode = "500"
        for _ in range(8):
            await lab.ask()
        assert lab.big.requests == 8 + 1 + 3
        assert await lab.is_ejected("primary")


async def test_a_refused_limiter_is_named_and_the_last_good_one_keeps_limiting(
    tmp_path: Path,
) -> None:
    limit, policy = Limit(tokens_per_second=10), bucket_of(10, tokens=500)
    async with limits_lab(tmp_path, limit=limit, fallback=limit, admission=policy) as lab:
        assert [(await lab.ask(b'{"max_tokens": 90}')).status for _ in range(5)] == [200] * 5
        good = lab.builder.build(a_plan(lab.topology))
        limiters = dict(good.of_type(EXTENSION_CONFIG).resources)
        bad = TypedExtensionConfig.FromString(limiters["limits/models"].body)
        config = LocalRateLimit.FromString(bad.typed_config.value)
        config.stat_prefix = ""
        bad.typed_config.value = config.SerializeToString()
        limiters["limits/models"] = Resource.of("limits/models", bad.SerializeToString())
        types = {**good.types, EXTENSION_CONFIG: TypeSnapshot(EXTENSION_CONFIG, limiters)}
        lab.cache.publish(Capability.COMPOSITE, Snapshot(types))

        async def refused() -> TypeStatus | None:
            types = lab.xds.status()[0].types
            return next((each for each in types if each.state is SyncState.ERROR), None)

        status = await eventually(refused, what="a refusal")
        assert status is not None
        assert status.type_url == EXTENSION_CONFIG
        assert status.error_names == ("limits/models",)
        assert "StatPrefix" in status.error
        assert (await lab.ask(b'{"max_tokens": 90}')).status == 429


async def test_a_request_over_the_limit_does_not_cost_its_connection(tmp_path: Path) -> None:
    limit, policy = Limit(requests_per_second=0.001), bucket_of(0.001, tokens=1)
    async with limits_lab(tmp_path, limit=limit, admission=policy) as lab:
        replies = [await lab.ask(b'{"p": "%b"}' % (b"x" * 200_000)) for _ in range(4)]
        assert [each.status for each in replies] == [200, 429, 429, 429]
        assert not any("connection" in each.headers for each in replies)
        total = await lab.envoys["one"].stat("http.llm.downstream_cx_total")
        assert total == 1


async def test_the_workers_of_a_proxy_share_its_buckets(tmp_path: Path) -> None:
    limit, policy = Limit(tokens_per_second=1, requests_per_second=1000), bucket_of(1, tokens=500)
    async with limits_lab(
        tmp_path, limit=limit, fallback=limit, admission=policy, workers=3
    ) as lab:
        replies = await lab.ask_at_once(60, b'{"max_tokens": 90}')
        assert sorted(each.status for each in replies) == [200] * 5 + [429] * 55

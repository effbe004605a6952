"""The thresholds of the brain, each with its unit and its reason.

Defaults live here and nowhere else; `xds_server.config` maps the configuration file onto these
classes. All times are seconds, all ratios 0-1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class VramMode(StrEnum):
    """What the VRAM watermark is compared with."""

    ABOVE_BASELINE = "above_baseline"
    """Trip above what the engine reserved: an idle vLLM preallocates 92 %."""
    ABSOLUTE = "absolute"
    """Trip above `high`, whatever the engine reserved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPolicy:
    """Watermarks of a tier's pressure; levels follow them with hysteresis."""

    high: float = 0.80
    """Degraded from here. Below it a tier spills only when demand exceeds capacity."""
    critical: float = 0.95
    """Critical from here: a minimum share is spilled."""
    margin: float = 0.10
    """A level is left only below its watermark minus this ..."""
    hold_s: float = 5.0
    """... and with empty queues for this long (vLLM saw-tooths 1.0-0.75 while preempting)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VramPolicy:
    """VRAM as a leak, co-tenant and near-OOM signal, not as load."""

    mode: VramMode = VramMode.ABOVE_BASELINE
    high: float = 0.92
    margin: float = 0.03
    """Above the reservation before it counts as somebody else's memory."""
    sustained_s: float = 60.0
    """How long it must last to trip, and to clear."""
    clear_margin: float = 0.02
    """It clears this much below the trip point."""
    free_floor_bytes: int = 256 * 1024 * 1024
    """Less free memory than this means OOM is near, whatever the ratio."""
    learn_s: float = 120.0
    """Without a declared reservation the baseline is the least ratio seen in this time."""
    reserved_ratio: float | None = None
    """Share that engines reserve, for those that do not say so."""
    derate_ratio: float = 0.5
    """A tripped instance gets this share of its capacity; its tier is at least degraded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailurePolicy:
    """What counts as a failure, for Envoy and for the agent's watchdog."""

    consecutive: int = 3
    """Failures in a row until Envoy ejects an endpoint."""
    header_timeout_s: float = 3.0
    """Time to response headers per attempt."""
    answer_timeout_s: float | None = 120.0
    """The same for requests without `stream: true`, whose headers come only with the last token: under the
    header timeout every long plain answer would look like a failure and eject a healthy engine. Proxies
    parse every body (up to 8 MiB) to tell; None = they do not, and the header timeout holds for all."""
    token_stall_s: float = 30.0
    """Silence inside a stream after which the attempt is given up."""
    static_on_5xx: bool = True
    """The last net: what is still a 5xx after all retries is answered statically. Envoy calls the filter
    (custom_response) work in progress, hence a switch."""
    throttled_ratio: float = 0.5
    """Share of its capacity that an instance gets while the hardware throttles its GPU."""
    throttled_s: float = 5.0
    """How long the throttling must last to count ..."""
    unthrottled_s: float = 30.0
    """... and must be gone to be over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """Health checks that the proxies themselves make, besides what agents say."""

    active: bool = False
    """Every proxy asks every instance for `path`."""
    path: str = "/health"
    """A tier's `health_path` wins."""
    interval_s: float = 5.0
    """From one check to the next, with traffic or without."""
    timeout_s: float = 5.0
    """SGLang's /health generates a token and takes at least 1.004 s, on a busy engine much more."""
    unhealthy: int = 3
    """Failed checks in a row that take an endpoint out."""
    healthy: int = 2
    """Passed checks in a row that bring it back ..."""
    return_s: float = 60.0
    """... at a tenth of its weight, which grows to all of it over this time: the control plane, which would
    have it ramp, may have seen nothing. 0 = at once. Without affinity only: Envoy has it for no other policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryPolicy:
    """The way back after a fault: stages of a ceiling, each held with healthy evidence."""

    stages: tuple[float, ...] = (0.10, 0.30, 1.00)
    hold_s: float = 30.0
    hold_max_s: float = 480.0
    """A relapse doubles the hold up to this."""
    jitter_ratio: float = 0.10
    """Each instance's hold is longer by up to this share, so that they do not move together."""
    quarantine_faults: int = 3
    """Faults within `quarantine_window_s` that make a restart loop."""
    quarantine_window_s: float = 600.0
    quarantine_s: float = 300.0
    """How long a looping instance gets nothing."""
    startup_s: float = 30.0
    """Instances that join this soon after the start are taken as healthy: agents are registering."""
    silent_down_s: float = 600.0
    """An instance last known to be down and silent for this long gets a trial at the first stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryPolicy:
    """How the age of a signal is read. Stale never halts a tier."""

    interval_s: float = 1.0
    """How often an agent sends when nothing moves."""
    stale_intervals: float = 3.0
    """Older than this many intervals: hold (last weight and integrators frozen)."""
    blind_after_s: float = 30.0
    """Older than this: static capacity weight. A derating by its GPU ends, too, when the GPU was not read for so long."""
    freeze_ratio: float = 0.5
    """More than this share of a tier blind: the whole tier is frozen, then static."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPolicy:
    """Endpoint weights inside a tier: capacity x ceiling x a gentle correction toward the mean."""

    gain: float = 1.0
    """At most 1: more flaps (research simulation)."""
    correction_min: float = 0.3
    correction_max: float = 1.5
    scale: int = 1000
    """The weight of an instance of average capacity."""
    publish_change_ratio: float = 0.02
    """Weights are published when one moves by more than this, or a ceiling changes."""
    settle_s: float = 0.5
    """A sample that cannot move a weight that far by itself (its pressure moved by at most half of
    `publish_change_ratio`, and nothing else changed) is decided upon within this time, together with the
    others of its model, unless a tier is pressed or spills. That is far below the seconds over which demand
    is smoothed, and ten times cheaper than a decision per sample; 0 decides at once."""
    trickle_ratio: float = 0.01
    """Load alone never takes an instance below this share of its capacity weight."""
    waiting_scale_ratio: float = 0.25
    """A queue of this share of the capacity adds 1 to the pressure."""
    ease_per_s: float = 0.05
    """How fast a correction moves after telemetry was lost or returned: nothing jumps."""
    default_slots: float = 32.0
    """Capacity of instances when no instance of the tier has a known one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillPolicy:
    """How much of a tier's demand goes to the next tier: fed forward from demand.

    The numbers were chosen on the simulated fleet that `benchmarks/closed_loop.py` plays.
    """

    target: float = 0.94
    """Share of the learned capacity that a tier is loaded to. 0.92 loses 1 % of utilization and gains
    nothing in queueing once demand is filtered."""
    demand_smoothing_s: float = 2.0
    """Time constant of the admitted requests/s of each instance."""
    demand_steady_s: float = 30.0
    """A move of demand within its noise is smoothed over this time ..."""
    demand_follow_s: float = 0.5
    """... and a move beyond the noise is followed within this time."""
    demand_noise_low: float = 2.0
    """Standard deviations of a Poisson stream up to which a move is all noise ..."""
    demand_noise_high: float = 4.0
    """... and from which it is all real."""
    capacity_window_s: float = 30.0
    """Time constant of completions and busy slot-seconds: how fast a drift of the service time is
    learned."""
    capacity_requests: float = 30.0
    """What was learned from fewer requests than this is kept, however long ago it was."""
    in_progress_credit: float = 0.5
    """Part of a completion that a running request counts for: how much of it is done on average, with
    equal lengths. Where a few are long it is more, but just after a step up it is less."""
    prior_service_s: float = 8.0
    """Mean time a request occupies a slot, believed until completions show better."""
    prior_requests: float = 4.0
    """How many completed requests the prior counts for: few, so that it is soon overruled."""
    queue_trim: float = 0.2
    """The most that a full queue lowers the believed capacity. More, or a shorter queue that counts as
    full, makes a loop with a lag of 5 s overshoot and shake."""
    queue_scale_ratio: float = 0.5
    """A queue of this share of the capacity is full."""
    slots_queue_ratio: float = 0.25
    """A queue of this share of the capacity proves that every slot that there is runs."""
    slots_learn_s: float = 10.0
    """With such a queue, the slots that run are believed to be all there are, within this time ..."""
    slots_forget_s: float = 600.0
    """... and without one, the configured slots are believed again, within this time."""
    minimum_above_critical: float = 0.05
    """Least share passed on while the tier is critical."""
    rise_per_s: float = 0.5
    """How fast a tier may pass on more; lost capacity is passed on at once."""
    fall_per_s: float = 0.25
    """How fast a tier may take back."""
    ease_per_s: float = 0.05
    """How fast it may do either after telemetry returned, until it is where it should be."""
    publish_change: float = 0.01
    """A share is given out when it moved by more than this, or became exactly zero."""
    step_s: float = 0.25
    """How soon to step again while a rate limit holds a change back."""
    pi_setpoint: float = 0.88
    """Pressure that the PI and AIMD aim at."""
    pi_proportional: float = 0.6
    """Share per unit of pressure."""
    pi_integral: float = 0.03
    """Share per unit of pressure and second."""
    aimd_above_lag_s: float = 3.0
    """With a slower loop, AIMD replaces the PI where demand is unknown."""
    aimd_factor: float = 0.85
    """What is kept is multiplied by this ..."""
    aimd_every_s: float = 8.0
    """... at most this often, while the pressure is above the setpoint ..."""
    aimd_step_per_s: float = 0.005
    """... and grows by this below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidencePolicy:
    """What proxies report about requests, and when that takes an instance out."""

    access_log: bool = True
    """Proxies send one log entry per request, and one per failed attempt, to the cluster named `xds` of their
    bootstrap, as `xds-server bootstrap` prints it; where that is called otherwise they serve, and send none."""
    stream_errors: bool = False
    """Proxies read every event of every stream, so that one that ends in an error event after its 200 counts
    as a failure. vLLM sends such when its engine process dies."""
    flush_s: float = 0.2
    """How long a proxy collects entries before it sends them."""
    load_report_s: float = 1.0
    """How often a proxy reports its load per endpoint; less often where many proxies or endpoints would make
    the reports more than the control plane can read beside its work."""
    entries_per_second: float = 20_000.0
    """What the control plane reads, a message counting as ten entries; of more, proxies drop the rest, so
    that nothing else has to wait. This much kept half a core busy. With more than 300 busy workers of
    proxies, `flush_s: 1` lets more through."""
    window_s: float = 10.0
    """Failures and latencies are judged over this time ..."""
    ratio_window_s: float = 60.0
    """... and shares of degraded and static answers over this."""
    failure_ratio: float = 0.5
    """An instance that fails this share of the window's attempts is taken out ..."""
    minimum_attempts: int = 20
    """... if there were at least this many."""
    consecutive_ratio: float = 0.02
    """`failures.consecutive` failures in a row take it out too; where this share of the window's attempts
    is more, that many: under heavy traffic three in a row are chance. 0.02 of ten seconds are 0.2 s of requests
    that all fail."""


class Unreadable(StrEnum):
    """What becomes of a body that should be rewritten and cannot be read."""

    REFUSE = "refuse"
    """It is answered with 400, as engines answer it."""
    FORWARD = "forward"
    """The engine gets it as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewritePolicy:
    """Bodies on their way to tiers that serve another name than clients call, or that shorten `max_tokens`."""

    unreadable: Unreadable = Unreadable.REFUSE
    """What becomes of a body that is no JSON object, or whose `model` is no string: `refuse` answers 400,
    `forward` gives it to the engine as it is (for uploads; but who limits by `max_tokens` may be bypassed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """How requests are counted against limits, and how the proxies share them."""

    prompt_tokens_per_byte: float = 0.25
    """Estimate of a prompt from the size of its body: four bytes are a token in English; other languages need
    fewer bytes per token."""
    default_max_tokens: int = 512
    """What a request may generate that does not say it."""
    burst_s: float = 0.4
    """A limit's bucket holds what it admits in this time: that much passes at once after a pause ..."""
    largest_request_tokens: int = 4096
    """... and at each proxy at least one request of this size, whatever small part of the limit the proxy has.
    A request that is larger than the bucket is always refused."""
    settle_s: float = 1.0
    """Proxies that come or go within this time change the division once."""
    absent_s: float = 10.0
    """A proxy that is not connected keeps its part this long: it may be serving while it reconnects."""
    divisions: int = 2
    """A changed part refills a bucket, so parts change that are together at most this many times the whole ..."""
    divisions_every_s: float = 30.0
    """... in this time."""
    shift_ratio: float = 0.5
    """Parts follow the observed shares of the requests when one of them is off by more than this share of it."""
    least_ratio: float = 0.2
    """No proxy's part is less than this share of an equal part: its load may come any moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything the brain can be told."""

    kv: KvPolicy = KvPolicy()
    vram: VramPolicy = VramPolicy()
    failures: FailurePolicy = FailurePolicy()
    health: HealthPolicy = HealthPolicy()
    recovery: RecoveryPolicy = RecoveryPolicy()
    telemetry: TelemetryPolicy = TelemetryPolicy()
    weights: WeightPolicy = WeightPolicy()
    spill: SpillPolicy = SpillPolicy()
    evidence: EvidencePolicy = EvidencePolicy()
    rewrite: RewritePolicy = RewritePolicy()
    admission: AdmissionPolicy = AdmissionPolicy()

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar_agent.engine.adapters import ADAPTERS, Options, Texts, detect
from sidecar_agent.engine.facts import EngineFacts, EngineState
from tests.fakes.engine_pages import PAGES, page

UP, UNKNOWN, SLEEPING = EngineState.UP, EngineState.UNKNOWN, EngineState.SLEEPING


def read(kind: str, text: str, *, slots: str | None = None, **options) -> EngineFacts:
    return ADAPTERS[kind].read(Texts(metrics=text, slots=slots), Options(**options))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "vllm-0.32.0-kv_peak.prom",
            {
                "kv_ratio": 1.0,
                "waiting": 17,
                "running": 7,
                "preemptions_total": 0,
                "prompt_tokens_total": 1590,
                "generation_tokens_total": 1607,
                "finished_total": 13,
                "kv_capacity_tokens": 2048,
                "reserved_ratio": 0.92,
                "started_at_unix_s": 1795965527.96,
            },
        ),
        ("vllm-0.32.0-after.prom", {"kv_ratio": 0.0, "waiting": 0, "preemptions_total": 28}),
        ("vllm-0.32.0-engine_frozen.prom", {"running": 4, "generation_tokens_total": 14032}),
        ("written-vllm_0_8_old.prom", {"kv_ratio": 0.82, "waiting": 2, "running": 8}),
        (
            "sglang-0.5.23-load_waiting.prom",
            {
                "kv_ratio": 0.2,
                "waiting": 16,
                "running": 4,
                "generation_tokens_total": 160,
                "prompt_tokens_total": 257,
                "kv_capacity_tokens": 2048,
                "finished_total": None,
            },
        ),
        ("sglang-0.5.23-kv_peak.prom", {"kv_ratio": 0.84, "waiting": 0, "finished_total": 16}),
        ("written-tgi.prom", {"kv_ratio": None, "waiting": 4, "running": 18}),
        ("written-trtllm_serve.prom", {"kv_ratio": 0.42, "waiting": 3, "running": 20}),
        (
            "written-triton_trtllm.prom",
            {"kv_ratio": 1 / 6239, "waiting": 1, "running": 4, "slots": 512},
        ),
        (
            "llamacpp-b11434-load_waiting.prom",
            {"kv_ratio": None, "waiting": 8, "running": 4, "progress_total": 43},
        ),
        ("written-nim.prom", {"kv_ratio": 0.37, "waiting": 0, "running": 11, "slots": 256}),
        ("written-lmdeploy_dp.prom", {"kv_ratio": 0.55, "waiting": 7, "running": None}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_engine_is_recognized_and_read(name, expected):
    text = page(name)
    adapter = detect(text)
    assert adapter is not None
    assert name.startswith((adapter.kind, f"written-{adapter.kind}"))
    facts = adapter.read(Texts(metrics=text), Options())
    assert facts.state is UP
    assert facts.rejected == 0
    assert {key: getattr(facts, key) for key in expected} == expected


def test_trap_1_perc_is_a_ratio_and_percent_is_converted_with_a_warning():
    ratio = read("vllm", "vllm:kv_cache_usage_perc 0.973")
    percent = read("vllm", "vllm:kv_cache_usage_perc 97.3")
    assert ratio.kv_ratio == 0.973
    assert percent.kv_ratio == pytest.approx(0.973)
    assert "ratio above 1 read as percent" in percent.warnings
    assert not ratio.warnings


def test_trap_1_one_percent_value_makes_the_whole_page_percent():
    text = 'vllm:kv_cache_usage_perc{engine="0"} 97.3\nvllm:kv_cache_usage_perc{engine="1"} 0.6'
    facts = read("vllm", text)
    assert facts.kv_ratio == pytest.approx(0.973)
    assert facts.kv_ratio_mean == pytest.approx((0.973 + 0.006) / 2)


def test_trap_1_rounding_above_one_is_full_and_not_one_percent():
    assert read("vllm", "vllm:kv_cache_usage_perc 1.0000000002").kv_ratio == 1.0


@pytest.mark.parametrize("value", ["100.1", "-0.01", "NaN", "+Inf", "-Inf"])
def test_trap_1_impossible_ratios_stay_missing_and_are_counted(value):
    facts = read("vllm", f"vllm:kv_cache_usage_perc {value}\nvllm:num_requests_waiting 3")
    assert (facts.state, facts.kv_ratio, facts.waiting, facts.rejected) == (UP, None, 3, 1)


@pytest.mark.parametrize(
    ("kind", "name", "fact", "labels"),
    [
        pytest.param("vllm", "vllm:generation_tokens_total", "progress_total", "engine", id="vllm"),
        pytest.param("vllm", "vllm:num_requests_waiting", "waiting", "engine", id="vllm-queue"),
        pytest.param("sglang", "sglang:num_running_reqs", "running", "dp_rank", id="sglang"),
        pytest.param("sglang", "sglang:realtime_tokens_total", "progress_total", "mode", id="live"),
        pytest.param(
            "sglang", "sglang:realtime_tokens_total", "prompt_tokens_total", "dp_rank", id="prompt"
        ),
        pytest.param("trtllm", "trtllm_num_requests_running", "running", "rank", id="trtllm"),
        pytest.param(
            "tgi", "tgi_request_generated_tokens_sum", "generation_tokens_total", "x", id="tgi"
        ),
    ],
)
@pytest.mark.parametrize("value", ["NaN", "-1", "1e99", "broken"])
def test_a_sum_that_lacks_a_part_is_missing_because_a_lower_counter_looks_like_a_restart(
    kind, name, fact, labels, value
):
    def text(second):
        essential = "vllm:num_requests_running 1\nsglang:num_queue_reqs 0\ntrtllm_num_requests_waiting 0\ntgi_queue_size 0\n"
        other = "sglang:prompt_tokens_total 3\n"
        return f'{essential}{other}{name}{{{labels}="decode"}} 5\n{name}{{{labels}="1"}} {second}\n'

    whole = getattr(read(kind, text("7")), fact)
    assert whole in (5, 7, 12)
    facts = read(kind, text(value))
    assert (facts.state, getattr(facts, fact)) == (UP, None)
    assert facts.rejected >= 1


def test_trap_2_a_renamed_kv_metric_gives_a_partial_sample_that_says_so():
    facts = read("vllm", "vllm:kv_cache_usage_v9 0.9\nvllm:num_requests_waiting 3")
    assert (facts.kv_ratio, facts.waiting) == (None, 3)
    assert facts.warnings == ("partial: no KV cache usage on the page",)


def test_trap_2_of_two_names_the_new_one_counts():
    text = "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.2"
    assert read("vllm", text).kv_ratio == 0.2


def test_trap_3_data_parallel_queues_add_up_and_the_fullest_cache_counts():
    facts = read("vllm", page("written-vllm_v1_dp2.prom"))
    assert (facts.kv_ratio, facts.waiting, facts.running) == (0.973, 9, 33)
    assert facts.kv_ratio_mean == pytest.approx((0.973 + 0.061) / 2)


def test_trap_3_blocks_are_already_summed_over_engines():
    text = page("vllm-0.32.0-dp2-kv_peak.prom")
    facts = read("vllm", text)
    assert (facts.kv_ratio, facts.waiting, facts.running) == (1.0, 11, 13)
    assert facts.kv_capacity_tokens == 4096
    without = text.replace("kv_cache_size_tokens", "something_else")
    assert read("vllm", without).kv_capacity_tokens == 128 * 32


def test_trap_4_priorities_are_parts_of_the_total():
    facts = read("sglang", page("written-sglang_priority.prom"))
    assert (facts.running, facts.waiting, facts.kv_ratio) == (12, 7, 0.91)


def test_trap_4_without_a_total_the_priorities_are_added_up():
    text = 'sglang:num_queue_reqs{priority="None"} 3\nsglang:num_queue_reqs{priority="5"} 2'
    assert read("sglang", text).waiting == 5


def test_trap_5_ranks_that_report_the_same_queue_count_once():
    series = [
        f'sglang:num_queue_reqs{{dp_rank="{dp}",tp_rank="{tp}",pp_rank="{pp}"}} {5 + dp}'
        for dp in range(2)
        for tp in range(4)
        for pp in range(2)
    ]
    assert read("sglang", "\n".join(series)).waiting == 5 + 6


def test_trap_6_retracted_gauges_of_dead_pids_and_odd_gauges_are_ignored():
    facts = read("sglang", page("written-sglang_priority.prom"))
    assert facts.preemptions_total is None
    assert facts.rejected == 0  # utilization -1 and fwd_occupancy NaN are not even looked at
    counted = "sglang:num_retracted_requests_total 3\nsglang:token_usage 0.5"
    assert read("sglang", counted).preemptions_total == 3


def test_trap_7_sglang_uses_its_live_token_counter():
    facts = read("sglang", page("sglang-0.5.23-kv_peak.prom"))
    assert facts.generation_tokens_total == 7876  # the counter that moves at the end says 6400
    assert facts.progress_total == 7876 + 1281


def test_trap_7_before_the_first_token_the_counter_is_missing_and_not_zero():
    facts = read("sglang", page("sglang-0.5.23-idle_fresh.prom"))
    assert facts.generation_tokens_total is None
    assert facts.progress_total == 1


def test_trap_9_without_a_start_time_the_page_still_reads():
    text = page("vllm-0.32.0-kv_peak.prom").replace("process_start_time_seconds", "gone")
    facts = read("vllm", text)
    assert (facts.started_at_unix_s, facts.waiting) == (None, 17)


def test_trap_10_a_histogram_called_total_is_no_token_counter():
    facts = read("vllm", page("written-vllm_v1_dp2.prom"))
    assert facts.generation_tokens_total == 2.7453e6
    assert facts.finished_total == 131


def test_trap_11_several_models_on_a_page_are_one_instance():
    text = (
        'vllm:num_requests_waiting{model_name="a"} 2\nvllm:num_requests_waiting{model_name="b"} 3\n'
        'vllm:kv_cache_usage_perc{model_name="a"} 0.2\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="x,y"} 1.7e9\n'
    )
    facts = read("vllm", text)
    assert (facts.waiting, facts.kv_ratio) == (5, 0.2)


def test_trap_12_tritons_fraction_is_not_used_over_max():
    facts = read("triton", page("written-triton_trtllm.prom"))
    assert facts.kv_ratio == pytest.approx(1 / 6239)
    assert facts.kv_capacity_tokens == 6239 * 64


def test_trap_12_triton_models_are_kept_apart():
    def blocks(model, used, largest):
        return "\n".join(
            f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{kind}",model="{model}"}} {value}'
            for kind, value in (("used", used), ("max", largest))
        )

    facts = read("triton", f"{blocks('a', 90, 100)}\n{blocks('b', 10, 1000)}")
    assert facts.kv_ratio == 0.9
    assert facts.kv_ratio_mean == pytest.approx((0.9 + 0.01) / 2)
    assert facts.waiting is None


def test_trap_13_tgi_has_no_kv_usage_unless_the_token_budget_is_known():
    assert read("tgi", page("written-tgi.prom")).kv_ratio is None
    assert read("tgi", page("written-tgi.prom"), kv_capacity_tokens=40000).kv_ratio == 30721 / 40000
    assert read("tgi", page("written-tgi.prom"), kv_capacity_tokens=10).kv_ratio == 1.0


def test_trap_14_a_sleeping_engine_looks_idle_and_is_not_up():
    text = page("written-vllm_v1_dp2.prom").replace(
        'sleep_state="awake"} 1.0', 'sleep_state="awake"} 0.0'
    )
    facts = read("vllm", text)
    assert (facts.state, facts.detail) == (SLEEPING, "asleep: engine 0")


@pytest.mark.parametrize("kind", [kind for kind in ADAPTERS if kind != "generic"])
@pytest.mark.parametrize(
    "text",
    ["", "python_info 1\nprocess_start_time_seconds 1.7e9\n", "<html>hello</html>"],
    ids=["empty", "only the process's own metrics", "no metrics at all"],
)
def test_trap_16_a_page_without_engine_families_is_missing_and_not_idle(kind, text):
    facts = read(kind, text)
    assert facts.state is UNKNOWN
    assert (facts.kv_ratio, facts.waiting, facts.running) == (None, None, None)
    assert "no" in facts.detail
    assert kind in facts.detail


def test_trap_16_a_page_without_engine_families_is_nobodys():
    assert detect("python_info 1\nprocess_cpu_seconds_total 3\n") is None
    assert detect("") is None


def test_waiting_by_reason_stands_in_for_the_total():
    text = (
        'vllm:num_requests_running 1\nvllm:num_requests_waiting_by_reason{reason="capacity"} 2\n'
        'vllm:num_requests_waiting_by_reason{reason="deferred"} 1'
    )
    assert read("vllm", text).waiting == 3


def test_swapped_requests_of_the_old_vllm_wait():
    text = "vllm:num_requests_waiting 2\nvllm:num_requests_swapped 3\nvllm:gpu_cache_usage_perc 1"
    assert read("vllm", text).waiting == 5


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("idle", 0.0), ("load", 4 * 109 / 2048), ("after", 0.0)],
)
def test_llamacpp_kv_usage_comes_from_slots_that_are_processing(name, ratio):
    slots = (PAGES / f"llamacpp-b11434-slots_{name}.json").read_text()
    facts = read("llamacpp", page("llamacpp-b11434-load_waiting.prom"), slots=slots)
    assert facts.kv_ratio == ratio
    assert (facts.slots, facts.kv_capacity_tokens) == (4, 2048)
    assert not facts.warnings


def test_llamacpp_reads_with_either_page_alone():
    slots = (PAGES / "llamacpp-b11434-slots_load.json").read_text()
    facts = ADAPTERS["llamacpp"].read(Texts(metrics=None, slots=slots), Options())
    assert (facts.state, facts.running, facts.waiting) == (UP, 4, None)
    assert "partial: no /metrics, so no queue (is --metrics on?)" in facts.warnings


@pytest.mark.parametrize(
    "slots",
    [
        "{",
        "[]",
        "{}",
        "[1]",
        '[{"id": 0}]',
        '[{"n_ctx": -1, "is_processing": true}]',
        '[{"n_ctx": 1, "is_processing": 1}]',
        "[" * 5000,
    ],
)
def test_llamacpp_slots_that_are_no_slots_leave_kv_usage_missing(slots):
    facts = read("llamacpp", page("llamacpp-b11434-load_waiting.prom"), slots=slots)
    assert (facts.kv_ratio, facts.running, facts.rejected) == (None, 4, 1)


def test_llamacpp_a_busy_slot_without_a_token_count_leaves_kv_usage_missing():
    slots = '[{"n_ctx": 512, "is_processing": true}, {"n_ctx": 512, "is_processing": false}]'
    assert read("llamacpp", "llamacpp:requests_processing 1", slots=slots).kv_ratio is None


def test_lmdeploy_queues_twice():
    facts = read("lmdeploy", page("written-lmdeploy_dp.prom"))
    assert facts.waiting == 1 + 6


def test_trtllm_capacity_needs_both_numbers():
    text = page("written-trtllm_serve.prom")
    assert read("trtllm", text).kv_capacity_tokens is None
    more = f"{text}\ntrtllm_kv_cache_tokens_per_block 64\n"
    assert read("trtllm", more).kv_capacity_tokens == 6239 * 64
    assert read("trtllm", "trtllm_num_requests_waiting 1").warnings


def test_sglang_usage_can_be_derived_from_tokens():
    text = "sglang:num_used_tokens 512\nsglang:max_total_num_tokens 2048\nsglang:num_queue_reqs 0"
    assert read("sglang", text).kv_ratio == 0.25
    assert read("sglang", "sglang:num_queue_reqs 0").warnings


def test_sglang_queues_of_a_disaggregated_decoder_count_as_waiting():
    text = (
        "sglang:num_queue_reqs 1\nsglang:num_decode_prealloc_queue_reqs 2\n"
        "sglang:num_decode_transfer_queue_reqs 3\nsglang:token_usage 0.1"
    )
    assert read("sglang", text).waiting == 6


def test_a_generic_engine_is_read_by_the_operators_names():
    facts = read(
        "generic",
        "my_cache 0.5\nmy_queue 4\nmy_active 2\nmy_steps 77",
        metrics={
            "kv_ratio": "my_cache",
            "waiting": "my_queue",
            "running": "my_active",
            "progress_total": "my_steps",
        },
    )
    assert (facts.kv_ratio, facts.waiting, facts.running) == (0.5, 4, 2)
    assert facts.progress_total == 77
    assert read("generic", "my_queue 4", metrics={"waiting": "my_queue"}).warnings


def test_configured_slots_and_tokens_stand_in_where_the_page_has_none():
    options = Options(slots=8, kv_capacity_tokens=1000)
    facts = ADAPTERS["vllm"].read(Texts(metrics="vllm:num_requests_waiting 0"), options)
    assert (facts.slots, facts.kv_capacity_tokens) == (8, 1000)
    facts = ADAPTERS["nim"].read(Texts(metrics=page("written-nim.prom")), options)
    assert facts.slots == 256


def test_an_info_label_that_is_no_number_is_missing():
    text = 'vllm:kv_cache_usage_perc 0\nvllm:cache_config_info{num_gpu_blocks="None",block_size="x",gpu_memory_utilization="7"} 1'
    facts = read("vllm", text)
    assert (facts.kv_capacity_tokens, facts.reserved_ratio) == (None, None)


def test_negative_and_infinite_counts_are_rejected():
    facts = read(
        "vllm",
        "vllm:num_requests_waiting -1\nvllm:num_requests_running +Inf\nvllm:kv_cache_usage_perc 0.1",
    )
    assert (facts.waiting, facts.running, facts.rejected) == (None, None, 2)


def test_malformed_lines_are_counted_and_said():
    facts = read("vllm", "vllm:num_requests_waiting abc\nvllm:kv_cache_usage_perc 0.1")
    assert facts.rejected == 1
    assert "1 malformed lines of known metrics" in facts.warnings


@given(
    kind=st.sampled_from(sorted(ADAPTERS)),
    name=st.sampled_from(sorted(path.name for path in PAGES.glob("*.prom"))),
    cut=st.integers(0, 60_000),
    noise=st.text(max_size=20),
)
def test_no_page_however_broken_makes_an_adapter_raise(kind, name, cut, noise):
    text = page(name)
    for broken in (text[:cut], text[:cut] + noise + text[cut : cut + 200]):
        facts = read(kind, broken, slots=broken, metrics={"kv_ratio": "vllm:kv_cache_usage_perc"})
        assert facts.kv_ratio is None or 0.0 <= facts.kv_ratio <= 1.0
        for value in (facts.waiting, facts.running, facts.slots):
            assert value is None or value >= 0.0

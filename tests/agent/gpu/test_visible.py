"""Which GPUs CUDA_VISIBLE_DEVICES means."""

from __future__ import annotations

import pytest

from sidecar_agent.gpu.facts import GpuReading
from sidecar_agent.gpu.visible import canonical_uuid, resolve_cuda_visible

B, A = "GPU-bbbb-1", "GPU-aaaa-1"
HOST = (
    GpuReading(uuid=B, index=0),
    GpuReading(uuid=A, index=1),
    GpuReading(uuid="MIG-1", index=1, parent_uuid=A),
)
PCI = "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("value", "order", "uuids"),
    [
        (None, None, (B, A)),
        ("", None, ()),
        (" ", None, ()),
        ("-1", PCI, ()),
        ("1", PCI, (A,)),
        ("1,0", PCI, (A, B)),
        ("1,-1,0", PCI, (A,)),
        (A, None, (A,)),
        ("GPU-a", None, (A,)),
        (f" {A} , {B} ", None, (A, B)),
        ("MIG-1", None, ("MIG-1",)),
    ],
)
def test_what_cuda_shows(value, order, uuids):
    found = resolve_cuda_visible(value, gpus=HOST, device_order=order)
    assert (found.uuids, found.problems) == (uuids, ())


@pytest.mark.parametrize("order", [None, "FASTEST_FIRST"])
def test_an_index_is_refused_unless_cuda_counts_as_nvml_does(order):
    found = resolve_cuda_visible("1", gpus=HOST, device_order=order)
    assert found.uuids == ()
    (problem,) = found.problems
    assert "index 1 is ambiguous" in problem
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in problem
    assert (order or "FASTEST_FIRST") in problem


def test_an_index_means_something_where_there_is_one_gpu():
    assert resolve_cuda_visible("0", gpus=HOST[:1]).uuids == (B,)


@pytest.mark.parametrize(
    ("value", "uuids", "said"),
    [
        ("1,7,0", (A,), "index 7 is not on this host, which has 2 GPUs; later entries are ignored"),
        (f"{A},GPU-cc,{B}", (A,), f"GPU-cc is not on this host, which has: {B}, {A}, MIG-1"),
        ("GPU-", (), f"GPU- is the start of 2 GPUs: {B}, {A}"),
        (f"{A},all", (A,), "'all' is no GPU, expected GPU-..., MIG-... or an index"),
        ("-2", (), "index -2 is not on this host"),
        ("1,1", (), f"{A} is listed twice, so CUDA shows no GPU"),
    ],
    ids=["out of range", "unknown", "ambiguous", "word", "negative", "twice"],
)
def test_cuda_stops_at_what_it_does_not_understand(value, uuids, said):
    found = resolve_cuda_visible(value, gpus=HOST, device_order=PCI)
    assert found.uuids == uuids
    assert said in found.problems[0]
    assert found.problems[0].startswith(f"CUDA_VISIBLE_DEVICES={value}: ")


def test_on_a_host_without_gpus_it_says_so():
    (problem,) = resolve_cuda_visible("GPU-x", gpus=()).problems
    assert "GPU-x is not on this host, which has: none" in problem


def test_time_slicing_hands_out_numbered_uuids():
    assert canonical_uuid(f" {A}::3 ") == A
    assert resolve_cuda_visible(f"{A}::3", gpus=HOST).uuids == (A,)

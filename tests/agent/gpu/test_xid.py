"""The ledger of XIDs: what takes a GPU out, and how it comes back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from sidecar_agent.gpu.facts import DriverState, GpuHealth, GpuReading, GpuSnapshot
from sidecar_agent.gpu.xid import Place, XidLedger, XidPolicy

A = Place("GPU-a")
RESET = sorted(XidPolicy().reset)


def gpu(uuid="GPU-a", health=GpuHealth.OK, **more):
    return GpuReading(uuid=uuid, index=0, health=health, **more)


def mig(uuid, instance, health=GpuHealth.OK):
    return gpu(uuid, health, parent_uuid="GPU-a", gpu_instance_id=instance)


def shown(ledger, *gpus, now=0.0):
    snapshot = ledger.overlay(GpuSnapshot(driver=DriverState.OK, gpus=gpus), now=now)
    return [reading.health for reading in snapshot.gpus]


@pytest.mark.parametrize("xid", RESET)
def test_every_xid_of_the_reset_class_takes_the_gpu_out(xid):
    ledger = XidLedger()
    ledger.record(A, xid, now=0)
    assert shown(ledger, gpu(), gpu("GPU-b")) == [GpuHealth.RESET_REQUIRED, GpuHealth.OK]


@given(st.integers(min_value=0, max_value=1000).filter(lambda xid: xid not in RESET))
def test_no_other_xid_does(xid):
    ledger = XidLedger()
    ledger.record(A, xid, now=0)
    assert shown(ledger, gpu()) == [GpuHealth.OK]
    assert ledger.counts == {("GPU-a", xid): 1}


def test_a_gpu_comes_back_after_its_hold_and_three_good_readings_in_a_row():
    ledger = XidLedger(XidPolicy(hold_s=60, verify_reads=3))
    ledger.record(A, 79, now=0)
    for now in (10, 20, 30, 59):
        ledger.observe([gpu()], now=now)
    assert shown(ledger, gpu(), now=59) == [GpuHealth.RESET_REQUIRED]
    for now, health in [(60, GpuHealth.OK), (61, GpuHealth.LOST), (62, GpuHealth.OK)]:
        ledger.observe([gpu(health=health)], now=now)
    ledger.observe([gpu()], now=63)
    assert shown(ledger, gpu(), now=63) == [GpuHealth.RESET_REQUIRED], "the bad one counts anew"
    ledger.observe([gpu(health=GpuHealth.THROTTLED)], now=64)
    assert shown(ledger, gpu(), now=64) == [GpuHealth.OK]
    assert ledger.overlay(GpuSnapshot(driver=DriverState.OK, gpus=(gpu(),)), now=64).gpus[
        0
    ].recent_xids == (79,)


@pytest.mark.parametrize("health", [GpuHealth.UNKNOWN, GpuHealth.LOST, GpuHealth.RESET_REQUIRED])
def test_readings_that_prove_nothing_bring_nothing_back(health):
    ledger = XidLedger(XidPolicy(hold_s=1, verify_reads=1))
    ledger.record(A, 79, now=0)
    for now in range(2, 20):
        ledger.observe([gpu(health=health)], now=now)
        ledger.observe([gpu("GPU-b")], now=now)
    assert shown(ledger, gpu(), now=20) == [GpuHealth.RESET_REQUIRED]


def test_a_second_xid_starts_the_hold_again():
    ledger = XidLedger(XidPolicy(hold_s=60, verify_reads=1))
    ledger.record(A, 79, now=0)
    ledger.record(A, 119, now=50)
    ledger.observe([gpu()], now=61)
    assert shown(ledger, gpu(), now=61) == [GpuHealth.RESET_REQUIRED]
    ledger.observe([gpu()], now=110)
    assert shown(ledger, gpu(), now=110) == [GpuHealth.OK]


steps = st.lists(
    st.tuples(
        st.floats(min_value=0.1, max_value=40),
        st.one_of(st.sampled_from([13, 79, 94, 119]), st.sampled_from(GpuHealth)),
    )
)


@given(steps)
def test_whatever_happened_a_gpu_stays_out_for_its_hold_and_then_can_come_back(history):
    ledger = XidLedger(XidPolicy(hold_s=60, verify_reads=3))
    now, last_reset = 0.0, None
    for pause, step in history:
        now += pause
        if isinstance(step, GpuHealth):
            ledger.observe([gpu(health=step)], now=now)
        else:
            ledger.record(A, step, now=now)
            last_reset = now if step in RESET else last_reset
        if last_reset is None:
            assert shown(ledger, gpu(), now=now) == [GpuHealth.OK]
        elif now < last_reset + 60:
            assert shown(ledger, gpu(), now=now) == [GpuHealth.RESET_REQUIRED]
    for second in range(3):
        ledger.observe([gpu()], now=now + 60 + second)
    assert shown(ledger, gpu(), now=now + 62) == [GpuHealth.OK]


def test_the_words_stay_the_same_while_it_is_held():
    ledger = XidLedger(XidPolicy(hold_s=60))
    ledger.record(A, 79, now=0)
    snapshot = GpuSnapshot(driver=DriverState.OK, gpus=(gpu(),))
    details = [ledger.overlay(snapshot, now=now).gpus[0].detail for now in (0, 59, 60)]
    assert details == ["XID 79: held for 60 s"] * 2 + ["XID 79: waiting for good readings"]


def test_worse_health_keeps_its_own_words():
    ledger = XidLedger()
    ledger.record(A, 79, now=0)
    lost = gpu(health=GpuHealth.LOST, detail="fell off")
    snapshot = ledger.overlay(GpuSnapshot(driver=DriverState.OK, gpus=(lost,)), now=0)
    assert snapshot.gpus[0].detail == "fell off"


def test_a_fault_of_a_mig_gpu_instance_stays_inside_it():
    ledger = XidLedger()
    ledger.record(Place("GPU-a", 2), 95, now=0)
    readings = [gpu(), mig("MIG-1", 1), mig("MIG-2a", 2), mig("MIG-2b", 2)]
    out = GpuHealth.RESET_REQUIRED
    assert shown(ledger, *readings) == [GpuHealth.OK, GpuHealth.OK, out, out]
    snapshot = ledger.overlay(GpuSnapshot(driver=DriverState.OK, gpus=tuple(readings)), now=0)
    assert [reading.recent_xids for reading in snapshot.gpus] == [(95,), (), (95,), (95,)]


def test_a_fault_of_a_gpu_takes_its_mig_devices_out_and_they_can_vouch_for_it():
    ledger = XidLedger(XidPolicy(hold_s=1, verify_reads=1))
    ledger.record(A, 79, now=0)
    refusing = gpu(health=GpuHealth.UNKNOWN)
    assert shown(ledger, refusing, mig("MIG-1", 1)) == [GpuHealth.RESET_REQUIRED] * 2
    ledger.observe([refusing, mig("MIG-1", 1)], now=2)
    assert shown(ledger, refusing, mig("MIG-1", 1), now=2) == [GpuHealth.UNKNOWN, GpuHealth.OK]


def test_xids_are_shown_for_a_while_and_the_newest_only():
    ledger = XidLedger(XidPolicy(recent_s=600))
    for now in range(20):
        ledger.record(A, now, now=now)
    snapshot = GpuSnapshot(driver=DriverState.OK, gpus=(gpu(),))
    assert ledger.overlay(snapshot, now=20).gpus[0].recent_xids == tuple(range(4, 20))
    assert ledger.overlay(snapshot, now=610).gpus[0].recent_xids == tuple(range(10, 20))


def test_only_a_fault_wakes_who_waits():
    woken = []
    ledger = XidLedger()
    ledger.subscribe(lambda: woken.append(1))
    ledger.record(A, 31, now=0)
    ledger.record(A, 94, now=0)
    assert woken == []
    ledger.record(A, 79, now=0)
    assert woken == [1]


def test_a_storm_is_logged_at_its_1st_10th_and_100th():
    ledger = XidLedger()
    with capture_logs() as logs:
        for _ in range(500):
            ledger.record(A, 13, now=0)
    assert [log["count"] for log in logs] == [1, 10, 100]
    assert ledger.counts == {("GPU-a", 13): 500}
    assert {log["means"] for log in logs} == {"application"}

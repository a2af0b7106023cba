"""Metrics of a control plane."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.control_plane.core.builders import START, coordinator, hello, lease, listing, load, spec

from leaseway.control_plane.core.budgets import Budgets
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial
from leaseway.control_plane.core.placement.table import Placement
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.workers.actions import CancelProbe, PushDelta, StartProbe
from leaseway.control_plane.metrics import PlaneMeters
from leaseway.spec.policy import CallLimits, Quota, Rate, ServerPolicy, TenantLimits
from leaseway.telemetry.metrics import SHOWN_FOR, Buckets, Meter
from leaseway.wire.errors import Reason
from leaseway.wire.sharing.limits import BudgetAsk, BudgetKey


class Measured:
    """A coordinator with meters and a fake clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.state: Coordinator = coordinator()
        self.budgets = Budgets(0.0)
        self.meter = Meter()
        self.meters = PlaneMeters(self.meter, self.state, self.budgets, lambda: self.now)

    def carry(self) -> list[tuple[str, object]]:
        """Record the queued actions."""
        actions = self.state.pop_actions()
        for worker_id, action in actions:
            self.meters.record_action(worker_id, action)
        return list(actions)

    def read(self, name: str) -> dict[tuple[str, ...], float | Buckets]:
        [family] = [metric for metric in self.meter.collect() if metric.name == name]
        return {tuple(point.labels.values()): point.value for point in family.points}


@pytest.fixture
def measured() -> Measured:
    made = Measured()
    made.state.handle_worker_joined(hello(), START)
    load(made.state, spec("a"))
    return made


def test_the_duration_of_a_probe_is_measured(measured: Measured) -> None:
    [start] = [action for _, action in measured.carry() if isinstance(action, StartProbe)]
    measured.now = 1.5
    measured.meters.record_probe(start.id, listing("x"))
    measured.meters.record_probe(start.id, listing("x"))  # an answer that came twice counts once
    found = measured.read("leaseway.probe.duration")
    assert list(found) == [("a", "ok")]
    value = found["a", "ok"]
    assert isinstance(value, Buckets)
    assert (value.total, value.sum) == (1, 1.5)


def test_failed_and_cancelled_probes_have_their_own_outcomes(measured: Measured) -> None:
    measured.meters.record_action("w1", StartProbe(8, spec("a")))
    measured.meters.record_action("w1", StartProbe(9, spec("a")))
    measured.meters.record_probe(8, Problem("server", "EXITED", "It ended."))
    measured.meters.record_action("w1", CancelProbe(9))
    assert set(measured.read("leaseway.probe.duration")) == {("a", "EXITED"), ("a", "CANCELLED")}


def test_probes_of_a_removed_server_are_shown_for_five_minutes(measured: Measured) -> None:
    measured.meters.record_action("w1", StartProbe(8, spec("a")))
    measured.meters.record_probe(8, listing("x"))
    assert measured.read("leaseway.probe.duration")
    load(measured.state)
    measured.now = SHOWN_FOR
    assert measured.read("leaseway.probe.duration")
    measured.now = 2 * SHOWN_FOR + 1
    assert not measured.read("leaseway.probe.duration")


def test_the_lag_of_a_worker_grows_until_it_has_acked(measured: Measured) -> None:
    [start] = [action for _, action in measured.carry() if isinstance(action, StartProbe)]
    measured.state.handle_probe_result(start.id, listing("x"), START)
    measured.state.tick(START)
    [push] = [action for _, action in measured.carry() if isinstance(action, PushDelta)]
    assert measured.read("leaseway.sync.lag") == {("w1",): 0.0}
    measured.now = 2.5
    assert measured.read("leaseway.sync.lag") == {("w1",): 2.5}
    measured.state.handle_ack("w1", push.push.nonce, START)
    assert measured.read("leaseway.sync.lag") == {("w1",): 0.0}
    version = measured.read("leaseway.registry.version")[()]
    assert version == float(push.push.version)


def test_placements_are_counted_by_outcome(measured: Measured) -> None:
    measured.meters.record_placement(Placement("w1"))
    measured.meters.record_placement(Placement("w1", "lease-1"))
    measured.meters.record_placement(Denial(Reason.CAPACITY, "Full."))
    measured.meters.record_placement(Denial(Reason.CAPACITY, "Full."))
    found = measured.read("leaseway.placements")
    assert found == {("ok",): 1.0, ("existing",): 1.0, ("CAPACITY",): 2.0}


def test_workers_problems_and_reloads_are_counted(measured: Measured) -> None:
    measured.state.problems.report(Problem("server", "EXITED", "It ended.", "a"), START.unix)
    measured.meters.record_reload(taken=True)
    measured.meters.record_reload(taken=False)
    measured.meters.record_reload(taken=True)
    assert measured.read("leaseway.workers")["connected",] == 1.0
    problems = measured.read("leaseway.problems")
    assert problems["server", "error", "EXITED", "a"] == 1.0
    assert problems["workspace", "warning"] == 0.0
    assert measured.read("leaseway.config.reloads") == {("ok",): 2.0, ("refused",): 1.0}
    measured.state.handle_worker_disconnected("w1", START)
    assert measured.read("leaseway.workers")["lost",] == 1.0


def test_what_is_left_of_limits_is_measured_by_owners_that_the_configuration_names(
    measured: Measured,
) -> None:
    limited = ServerPolicy(
        limits={
            "acme": TenantLimits(Rate(6, 60.0), leases=2),
            "*": TenantLimits(Rate(9, 60.0), leases=5),
        },
        agent_limits={"acme": {"bot": CallLimits(concurrent=1)}},
        quota=Quota(tools=(("x", CallLimits(concurrent=3)),)),
    )
    load(measured.state, replace(spec("a"), policy=limited))
    uses = [
        (BudgetKey("acme", "calls"), 6, 60.0, 2),
        (BudgetKey("one", "calls"), 9, 60.0, 4),
        (BudgetKey("two", "calls"), 9, 60.0, 7),
        (BudgetKey("", "concurrent", "a", tool="x"), 3, 0.0, 1),
    ]
    for key, limit, period, needed in uses:
        measured.budgets.ask("w1", BudgetAsk(key, limit, period, needed), ["w1"], 1, 0.0)
    for number, session in enumerate(("s1", "s2", "s3")):
        held = lease(f"L{number}", "w1", session)
        measured.state.placements.add_lease(held._replace(key=held.key._replace(tenant="one")))
    measured.now = 15.0
    assert measured.read("leaseway.limit.remaining") == {
        ("tenant", "calls", "acme"): 4.0,
        ("tenant", "leases", "acme"): 2.0,
        ("tenant", "calls", "*"): 2.0,
        ("tenant", "leases", "*"): 2.0,
        ("agent", "concurrent", "acme", "bot"): 1.0,
        ("tool", "concurrent", "a", "x"): 2.0,
    }
    assert measured.read("leaseway.limit.renewal") == {
        ("tenant", "calls", "acme"): 45.0,
        ("tenant", "calls", "*"): 45.0,
    }

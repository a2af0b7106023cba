"""A tenant never sees what its configuration hides, however probes end.

See design.md#configuration.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.control_plane.core.builders import START, coordinator, hello, listing, spec
from tests.control_plane.core.fake_worker import FAILED, FakeWorker, answer, run

from leaseway.control_plane.core.catalog.subjects import Reader
from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.denial import Denial, PendingServers
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.queries.resolve import find_name
from leaseway.control_plane.core.servers.pending import PendingVariants
from leaseway.control_plane.core.workers.actions import PushDelta
from leaseway.control_plane.core.workers.subscription import VariantRefusal
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.kinds.table import hidden_spec
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.wire.errors import Reason
from leaseway.wire.names import ALL_TENANTS

ACME = VariantKey("a", "acme")
TOOLS = ("read", "wipe", "write")
READERS = ("acme", "other", ALL_TENANTS)
NO_WIPE = NameFilter(blacklist=("wipe",))


def of_acme(command: str = "serve", tools: NameFilter = NO_WIPE) -> ServerSpec:
    """Return acme's variant of server `a`, by default with the common launch hash."""
    return replace(spec("a", command=command), key=ACME, tools=tools)


def load(state: Coordinator, *specs: ServerSpec, now: Moment = START) -> None:
    """Apply a configuration."""
    state.apply_config({spec.key: spec for spec in specs}, frozenset(), (), now)


def seen(state: Coordinator, tenant: str) -> list[str]:
    """Return the original names of the tools that a tenant sees of server `a`."""
    served = state.visible.view(tenant).servers.get("a")
    return [] if served is None else [tool.original for tool in served.callable_tools]


def running(*specs: ServerSpec) -> tuple[Coordinator, FakeWorker]:
    """Return a coordinator and a worker that serves these."""
    state, worker = coordinator(), FakeWorker()
    load(state, *specs)
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    while worker.probes:
        answer(state, worker, listing(*TOOLS))
    return state, worker


def later(state: Coordinator, worker: FakeWorker) -> None:
    """Advance the time and process all actions."""
    soon = Moment(START.mono + 0.1, START.unix + 0.1)
    state.tick(soon)
    run(state, [worker], soon)


def test_a_new_variant_with_the_common_launch_hash_is_up_at_once() -> None:
    state, worker = running(spec("a"))
    load(state, spec("a"), of_acme())
    run(state, [worker])
    assert worker.probes == []
    assert seen(state, "acme") == ["read", "write"]
    assert seen(state, "other") == list(TOOLS)
    assert worker.held[ACME].exposed == state.visible.served[ACME].exposed


def test_a_variant_copies_the_common_listing_and_cancels_its_probe() -> None:
    state, worker = coordinator(), FakeWorker()
    load(state, spec("a"), of_acme())
    state.handle_worker_joined(hello(), START)
    run(state, [worker])
    own = next(probe.id for probe in worker.probes if probe.spec.key == ACME)
    common = next(probe.id for probe in worker.probes if probe.spec.key != ACME)
    state.handle_probe_result(common, listing(*TOOLS), START)
    later(state, worker)
    assert own in worker.cancelled
    assert seen(state, "acme") == ["read", "write"]
    assert state.ready


def test_a_new_variant_with_another_launch_hash_hides_the_server_until_it_is_up() -> None:
    state, worker = running(spec("a"), spec("b"))
    load(state, spec("a"), spec("b"), of_acme("own"))
    later(state, worker)
    assert seen(state, "acme") == []
    assert seen(state, "other") == list(TOOLS)
    assert state.pending.of("acme") == ["a"]
    assert isinstance(find_name(state, Reader("acme"), "a_read", START), PendingServers)
    assert worker.held[ACME].exposed == ()  # a worker does not run its tools either
    answer(state, worker, listing(*TOOLS))
    later(state, worker)
    assert seen(state, "acme") == ["read", "write"]


def test_a_variant_that_fails_to_start_is_a_problem_that_names_the_tenant() -> None:
    state, worker = running(spec("a"))
    load(state, spec("a"), of_acme("own"))
    run(state, [worker])
    answer(state, worker, FAILED)
    later(state, worker)
    assert seen(state, "acme") == []
    (problem,) = [
        each_problem.problem
        for each_problem in state.problems.open()
        if each_problem.problem.tenant == "acme"
    ]
    assert problem.reason == "START_FAILED"
    assert problem.message.endswith(
        "Until the server starts, tenant 'acme' does not have it: its configuration differs from"
        " that of other tenants."
    )
    outcome = find_name(state, Reader("acme"), "a:read", START)
    assert isinstance(outcome, Denial)
    assert outcome.reason is Reason.SERVER_NOT_READY


def test_removing_the_override_of_a_failed_variant_restores_the_common_one() -> None:
    state, worker = running(spec("a"))
    load(state, spec("a"), of_acme("own"))
    run(state, [worker])
    answer(state, worker, FAILED)
    load(state, spec("a"))
    later(state, worker)
    assert seen(state, "acme") == list(TOOLS)
    assert ACME not in worker.held


def test_a_server_that_is_no_longer_hidden_is_pending_until_it_is_up() -> None:
    state, worker = running(spec("a"), hidden_spec(ACME))
    load(state, spec("a"), of_acme("own"))
    later(state, worker)
    assert state.pending.of("acme") == ["a"]
    assert seen(state, "acme") == []


def test_a_variant_that_every_worker_refuses_does_not_expose_the_common_one() -> None:
    state, _ = running(spec("a"))
    load(state, spec("a"), of_acme())
    for worker_id, action in state.pop_actions():
        assert isinstance(action, PushDelta), action
        refusal = VariantRefusal(ACME, "ODD", "It is odd.")
        state.handle_nack(worker_id, action.push.nonce, [refusal], START)
        state.handle_ack(worker_id, action.push.nonce, START)
    assert seen(state, "acme") == []
    assert seen(state, "other") == list(TOOLS)
    outcome = find_name(state, Reader("acme"), "a:read", START)
    assert isinstance(outcome, Denial)
    assert outcome.reason is Reason.SERVER_NOT_READY


COMMANDS = st.sampled_from(["serve", "other"])
FILTERS = st.builds(
    NameFilter,
    whitelist=st.lists(st.sampled_from(TOOLS), max_size=2).map(tuple),
    blacklist=st.lists(st.sampled_from(TOOLS), max_size=2).map(tuple),
)
WANTED = st.one_of(
    st.none(), st.just(hidden_spec(ACME)), st.builds(of_acme, command=COMMANDS, tools=FILTERS)
)


class OneTenant(RuleBasedStateMachine):
    """A tenant with changing rules, probes that succeed or fail, workers that refuse."""

    @initialize()
    def begin(self) -> None:
        self.now = START
        self.state, self.worker = coordinator(), FakeWorker()
        self.wanted: ServerSpec | None = None
        self.since: list[ServerSpec] = []  # what was wanted since something of it came up
        self.configured = False
        self.refuses = False
        self.state.handle_worker_joined(hello(), self.now)
        self._settle()

    @rule(common=COMMANDS, wanted=WANTED)
    def configure(self, common: str, wanted: ServerSpec | None) -> None:
        self.wanted, self.configured = wanted, True
        hides = wanted is None or wanted.hidden
        self.since = [] if wanted is None or hides else [*self.since, wanted]
        own = () if wanted is None else (wanted,)
        load(self.state, spec("a", command=common), *own, now=self.now)
        self._settle()

    @precondition(lambda self: self.worker.probes)
    @rule(comes_up=st.booleans())
    def try_to_start(self, comes_up: bool) -> None:
        outcome = listing(*TOOLS) if comes_up else FAILED
        self.state.handle_probe_result(self.worker.probes.pop(0).id, outcome, self.now)
        self._settle()

    @rule(refuses=st.booleans())
    def change_mind(self, refuses: bool) -> None:
        self.refuses = refuses

    @precondition(lambda self: self.configured)
    @rule()
    def restart_control_plane(self) -> None:
        desired = self.state.servers.desired or {}
        self.state = coordinator()
        self.worker.probes.clear()
        load(self.state, *desired.values(), now=self.now)
        held = self.worker.hashes()
        joined = hello(held=held, highest_version=self.worker.version)
        self.state.handle_worker_joined(joined, self.now)
        self._settle()

    @invariant()
    def the_tenant_sees_nothing_that_its_configuration_hides(self) -> None:
        tools = seen(self.state, "acme")
        if self.wanted is None:
            return
        good = self.state.servers.last_known_good.get(ACME)
        if good is not None and self.since and good.launch_hash == self.wanted.launch_hash:
            del self.since[:-1]  # an entry applies as a whole once it is up
        allowed = {tool for spec in self.since for tool in TOOLS if spec.tools.passes(tool)}
        assert set(tools) <= allowed

    @invariant()
    def what_is_kept_of_pending_variants_is_what_all_of_them_give(self) -> None:
        servers, kept = self.state.servers, self.state.pending
        found = set(kept.variants), [*map(kept.of, READERS)], [*map(servers.variants_of, READERS)]
        afresh = replace(servers, _variants={})
        computed = PendingVariants(afresh, self.state.registry)
        assert found == (
            computed.variants,
            [*map(computed.of, READERS)],
            [*map(afresh.variants_of, READERS)],
        )

    def _settle(self) -> None:
        for _ in range(2):
            self._take_all()
            self.now = Moment(self.now.mono + 0.1, self.now.unix + 0.1)
            self.state.tick(self.now)
        self._take_all()

    def _take_all(self) -> None:
        """Let the worker apply a delta, except a tenant variant that it refuses."""
        push = self.state.workers["w1"].subscription.pending
        upserts = push.upserts if push is not None and ACME not in self.worker.held else ()
        refused = self.refuses and any(served.key == ACME for served in upserts)
        if push is not None and refused:
            refusal = VariantRefusal(ACME, "ODD", "It is odd.")
            self.state.handle_nack("w1", push.nonce, [refusal], self.now)
        run(self.state, [self.worker], self.now)
        if refused:
            del self.worker.held[ACME]


def test_a_tenant_sees_nothing_that_its_configuration_in_force_hides_however_launches_end() -> None:
    chosen = settings(max_examples=100, stateful_step_count=12, deadline=None)
    run_state_machine_as_test(OneTenant, settings=chosen)

"""A server that fails to parse, start or list never changes another's toolset.

See design.md#reload.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.control_plane.core.builders import START, at, coordinator, hello, listing, spec
from tests.control_plane.core.fake_worker import FakeWorker, exposed, run

from leaseway.control_plane.core.coordinator import Coordinator
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.model import VariantKey

Trouble = Literal[
    "absent", "well", "not readable", "not starting", "not listing", "not listing again"
]
Others = dict[str, tuple[str, str]]

CULPRIT = VariantKey("m")  # between the others, as names are settled in the order of ids
REASONS = {"not starting": "START_FAILED", "not listing": "LIST_FAILED"}
OTHERS = st.dictionaries(
    st.sampled_from(["a", "b", "y", "z"]),
    st.tuples(st.sampled_from(["c1", "c2"]), st.sampled_from(["", "p_", "q_"])),
    max_size=4,
)
TROUBLES = st.sampled_from(
    ["absent", "well", "not readable", "not starting", "not listing", "not listing again"]
)


@dataclass
class System:
    """A coordinator with one worker; it may be started again."""

    state: Coordinator = field(default_factory=coordinator)
    worker: FakeWorker = field(default_factory=FakeWorker)

    def __post_init__(self) -> None:
        self.state.handle_worker_joined(hello(), START)

    def restart(self, now: Moment) -> None:
        """Replace a killed coordinator with a new one."""
        held = self.worker.hashes()
        self.worker.probes.clear()
        self.state = coordinator()
        self.state.handle_worker_joined(hello(held=held, highest_version=self.worker.version), now)

    def step(self, others: Others, trouble: Trouble, launch: int, now: Moment) -> None:
        """Apply a configuration and process all resulting actions."""
        specs = [spec(name, command=c, prefix=p + name) for name, (c, p) in others.items()]
        if trouble not in ("absent", "not readable"):
            command = f"culprit-{launch}" if trouble in REASONS else "culprit"
            specs.append(spec(CULPRIT.server_id, command=command))
        rejected = frozenset({CULPRIT.server_id} if trouble == "not readable" else ())
        self.state.apply_config(
            {each_spec.key: each_spec for each_spec in specs}, rejected, (), now
        )
        self._settle(trouble, now)
        if trouble == "not listing again":
            good = self.state.servers.last_known_good[CULPRIT]
            problem = Problem("server", "LIST_FAILED", "It did not answer.")
            self.state.handle_relisting("w1", CULPRIT, good.launch_hash, problem, now)
        self.state.tick(Moment(now.mono + 0.1, now.unix + 0.1))
        self._settle(trouble, now)

    def _settle(self, trouble: Trouble, now: Moment) -> None:
        run(self.state, [self.worker], now)
        while self.worker.probes:
            probe = self.worker.probes.pop(0)
            fails = probe.spec.key == CULPRIT and trouble in REASONS
            problem = Problem("server", REASONS.get(trouble, ""), "It failed.")
            self.state.handle_probe_result(
                probe.id, problem if fails else listing("echo", "add"), now
            )
            run(self.state, [self.worker], now)

    def served_of_others(self) -> tuple[object, object, object]:
        """Return what callers and the worker see of the other servers."""
        visible = {k: s.hashes for k, s in self.state.visible.served.items() if k != CULPRIT}
        held = {key: hash_ for key, hash_ in self.worker.hashes().items() if key != CULPRIT}
        names = {n: owner for n, owner in exposed(self.state).items() if owner != "m"}
        return visible, held, names


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(OTHERS, TROUBLES, st.booleans()), min_size=1, max_size=8))
@example([({"a": ("c1", "")}, "well", False), ({"a": ("c2", "")}, "not readable", True)])
def test_a_server_in_trouble_never_changes_anothers_toolset(
    steps: list[tuple[Others, Trouble, bool]],
) -> None:
    """At every step, the other servers are equal to those of a system without it."""
    beside, without = System(), System()
    for number, (others, trouble, restart) in enumerate(steps):
        now = at(number)
        if restart:
            beside.restart(now)
            without.restart(now)
        beside.step(others, trouble, number, now)
        without.step(others, "absent", number, now)
        assert beside.served_of_others() == without.served_of_others()
        assert {key.server_id for key in without.worker.held} == set(others)

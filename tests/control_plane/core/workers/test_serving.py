"""The workers that serve a variant, found without a scan of the fleet."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control_plane.core.builders import START, hello, listing, spec

from leaseway.control_plane.core.catalog.variants import Hashes, Served, build_good
from leaseway.control_plane.core.workers.instances import InstanceTable, ReportedInstance
from leaseway.control_plane.core.workers.records import WorkerRecord
from leaseway.control_plane.core.workers.serving import ServingIndex
from leaseway.control_plane.core.workers.subscription import Subscription
from leaseway.spec.model import VariantKey
from leaseway.wire.clients.greeting import COMMON, Greeting
from leaseway.wire.clients.mcp_client import McpClient

KEY = VariantKey("a")


def served(server_id: str = "a", *, shared: bool = True) -> Served:
    return build_good(spec(server_id, shared=shared), listing("x"))[0].without_clashes


def scanned(one: Served, workers: list[WorkerRecord]) -> list[WorkerRecord]:
    """Return what `workers_serving` promises, by looking at every worker."""
    has = [w for w in workers if not w.draining and w.subscription.has(one)]
    has = [w for w in has if w.connected] or has
    launched = one.key, one.hashes.launch
    able = [w for w in has if not w.is_failing(*launched)] or has
    if one.spec.truely_stateless and one.spec.starts_eagerly:
        return [w for w in able if w.is_up(*launched)] or able
    return able


GREETINGS = [
    COMMON,
    *(
        Greeting.of(McpClient(version, {}, {"name": name}))
        for version in ("2025-11-25", "2026-07-28")
        for name in ("one", "other")
    ),
]
SPARES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(GREETINGS),
            st.sampled_from(["", "2025-11-25", "2026-07-28"]),
            st.sampled_from(["ready", "starting"]),
        ),
        max_size=3,
    ),
    max_size=5,
)


@settings(max_examples=200, deadline=None)
@given(SPARES, SPARES, st.sampled_from(GREETINGS))
def test_workers_with_a_usable_spare_are_those_that_a_scan_finds(
    before: list[list[tuple[Greeting, str, str]]],
    after: list[list[tuple[Greeting, str, str]]],
    wanted: Greeting,
) -> None:
    index, tables = ServingIndex(), dict[str, InstanceTable]()
    for spares in (before, after):
        for number, offered in enumerate(spares):
            worker_id = f"w{number}"
            table = tables.setdefault(worker_id, InstanceTable())
            launches = table.launches
            table.replace_all(
                ReportedInstance(
                    str(count),
                    worker_id,
                    KEY,
                    state,
                    launch_hash="L",
                    role="spare",
                    serves=greeted.serves(version),
                )
                for count, (greeted, version, state) in enumerate(offered)
            )
            index.update_launches(worker_id, launches, table.launches)
    usable = {
        worker_id
        for worker_id, table in tables.items()
        for spare in table.all
        if spare.state == "ready" and not wanted.accepted.isdisjoint(spare.serves)
    }
    assert index.workers_with_spare((KEY, "L"), wanted.accepted) == usable
    assert not index.workers_with_spare((KEY, "another"), wanted.accepted)


STATES = st.lists(
    st.tuples(
        st.integers(0, 2),  # content
        st.booleans(),  # draining
        st.booleans(),  # connected
        st.sampled_from(["", "ready", "backoff", "starting"]),
    ),
    max_size=6,
)


@settings(max_examples=200, deadline=None)
@given(STATES, st.booleans())
def test_the_index_finds_what_a_scan_finds(
    states: list[tuple[int, bool, bool, str]], shared: bool
) -> None:
    one = served(shared=shared)
    contents: list[dict[VariantKey, Hashes]] = [{}, {KEY: one.hashes}, {KEY: Hashes("L", "", "")}]
    index, workers = ServingIndex(), list[WorkerRecord]()
    for number, (content, draining, connected, state) in enumerate(states):
        worker_id = f"w{number}"
        reported = ReportedInstance(
            "i",
            worker_id,
            KEY,
            state,
            launch_hash=one.hashes.launch,
            role="shared",
            failures=state == "backoff",
        )
        record = WorkerRecord(
            hello(worker_id),
            Subscription(acked=contents[content]),
            draining=draining,
            disconnected_at=None if connected else START.mono,
            instances=InstanceTable([reported] if state else []),
        )
        index.update_launches(worker_id, InstanceTable().launches, record.instances.launches)
        workers.append(record)
    assert list(index.workers_serving(one, workers, 1)) == scanned(one, workers)
    count = index.count_serving(one, workers, 1)
    connected_ones = [w for w in workers if w.connected and w.subscription.has(one)]
    assert count in (None, len(connected_ones))


def test_servers_with_the_same_workers_share_one_answer() -> None:
    variants = [served(f"s{number}", shared=False) for number in range(50)]
    content = {variant.key: variant.hashes for variant in variants}
    workers = [
        WorkerRecord(hello(f"w{number:04}"), Subscription(acked=content)) for number in range(1_000)
    ]
    index = ServingIndex()
    answers = [index.workers_serving(variant, workers, 1) for variant in variants]
    assert len(answers[0]) == 1_000
    assert len({id(answer) for answer in answers}) == 1

"""The calls that a worker remembers and counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data_plane.conftest import Bench

from leaseway.data_plane.calls.recent import PastCall, RecentCalls
from leaseway.wire.errors import Fault
from leaseway.wire.messages.states import CALL_OK

_TRACE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def _call(number: int = 1, **values: object) -> PastCall:
    facts: dict[str, object] = {
        "number": number,
        "started_at": 1_000.0,
        "duration": 0.01,
        "server_id": "time",
        "tool": "now",
        "method": "",
        "tenant": "default",
        "agent": "",
        "session": "",
        "lease_id": "",
        "instance_id": "w-time-1",
        "traceparent": "",
        "outcome": CALL_OK,
        "message": "",
        "marks": (("admission", 0.0),),
    }
    return PastCall(**{**facts, **values})  # type: ignore[arg-type]


def _numbers(calls: list[PastCall]) -> list[int]:
    return [call.number for call in calls]


def test_the_newest_calls_come_first_and_the_oldest_are_forgotten() -> None:
    calls = RecentCalls(kept=3)
    for number in range(1, 6):
        calls.record(_call(number))
    assert _numbers(calls.select("recent", limit=10, now=1_000.0)) == [5, 4, 3]
    assert _numbers(calls.select("recent", limit=1, now=1_000.0)) == [5]


def test_failures_outlive_the_calls_that_come_after_them() -> None:
    calls = RecentCalls(kept=2)
    calls.record(_call(1, outcome="SERVER_LOST", message="It ended."))
    calls.record(_call(2, outcome="tool_error"))
    for number in range(3, 9):
        calls.record(_call(number))
    assert _numbers(calls.select("failed", limit=10, now=1_000.0)) == [2, 1]


def test_the_slowest_of_the_last_ten_minutes_come_first() -> None:
    calls = RecentCalls(kept_slow=2)
    for number, took in enumerate((0.3, 0.1, 0.9, 0.5), start=1):
        calls.record(_call(number, duration=took))
    assert _numbers(calls.select("slow", limit=10, now=1_001.0)) == [3, 4]
    calls.record(_call(5, started_at=1_700.0, duration=0.05))
    assert _numbers(calls.select("slow", limit=10, now=1_700.0)) == [5]


def test_a_call_is_found_by_its_trace_and_by_its_number() -> None:
    calls = RecentCalls(kept=2)
    calls.record(_call(1, traceparent=_TRACE, outcome="SERVER_LOST"))
    for number in (2, 3, 4):
        calls.record(_call(number))
    by_trace = calls.select("recent", limit=10, now=0.0, name=_TRACE[3:35])
    assert _numbers(by_trace) == [1]
    assert _numbers(calls.select("recent", limit=10, now=0.0, name="4")) == [4]
    assert calls.select("recent", limit=10, now=0.0, name="77") == []


def test_calls_of_one_server_are_selected_among_those_of_others() -> None:
    calls = RecentCalls()
    calls.record(_call(1, server_id="a"))
    calls.record(_call(2, server_id="b"))
    assert _numbers(calls.select("recent", limit=10, now=0.0, server_id="a")) == [1]


def test_a_phase_of_a_call_lasts_until_the_next_one_starts() -> None:
    call = _call(duration=1.0, marks=(("admission", 0.0), ("waiting", 0.25), ("server", 0.75)))
    assert list(call.phases) == [
        ("admission", 0.0, 0.25),
        ("waiting", 0.25, 0.5),
        ("server", 0.75, 0.25),
    ]


@pytest.mark.parametrize(
    ("took", "bucket"), [(0.0002, 0), (0.0015, 1), (0.1, 7), (65.0, 16), (500.0, 17)]
)
def test_durations_are_counted_by_powers_of_two(took: float, bucket: int) -> None:
    calls = RecentCalls()
    calls.record(_call(duration=took))
    assert calls.traffic["time"].buckets.index(1) == bucket


def test_a_name_that_a_caller_invents_is_not_counted_as_a_server() -> None:
    calls = RecentCalls()
    for outcome in ("TOOL_NOT_FOUND", "INVALID_REQUEST"):
        calls.record(_call(outcome=outcome, server_id="invented"), is_known=False)
    assert calls.traffic == {}
    calls.record(_call(outcome="TOOL_NOT_FOUND", server_id="time"))
    assert calls.traffic["time"].failed == 1


def test_the_counts_of_removed_servers_make_room_before_those_of_new_ones_are_mixed() -> None:
    calls = RecentCalls()
    for number in range(1_000):
        calls.record(_call(server_id=f"s{number}"))
    calls.make_room(())
    assert len(calls.traffic) == 1_000
    calls.record(_call(server_id="newest"))
    calls.make_room(("s0", "newest", "uncalled"))
    assert list(calls.traffic) == ["s0", "newest"]


def test_a_long_message_is_cut() -> None:
    calls = RecentCalls()
    calls.record(_call(outcome="INTERNAL", message="x" * 9_000))
    assert len(calls.select("failed", limit=1, now=0.0)[0].message) == 500


class Ended:
    """A call that ended well after some time."""

    generation = object()

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.was_kept = False

    def past_call(self, fault: Fault | None, is_error: bool) -> PastCall:
        self.was_kept = True
        return _call(duration=0.01)


def keeps(calls: RecentCalls, server_id: str, took: float, ended: float) -> bool:
    """Return whether a success is kept."""
    call = Ended(ended - took)
    calls.end_call(server_id, call, None, False, ended)
    return call.was_kept


def test_of_very_many_successes_all_are_counted_and_the_first_of_each_second_kept() -> None:
    calls = RecentCalls(kept=40, kept_slow=1)
    calls.record(_call(duration=60.0))
    kept = [keeps(calls, "busy", 0.01, 100.0 + n / 100) for n in range(200)]
    assert calls.traffic["busy"].calls == 200
    assert kept[:12] == [True] * 10 + [False] * 2
    assert 20 <= sum(kept) <= 30
    assert keeps(calls, "quiet", 0.01, 102.0)


def test_a_slow_success_is_kept_however_many_there_are() -> None:
    calls = RecentCalls(kept=4, kept_slow=1)
    calls.record(_call(1, duration=0.5))
    assert [keeps(calls, "time", 0.01, 100.0) for _ in range(3)] == [True, False, False]
    assert keeps(calls, "time", 0.6, 100.0)


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.sampled_from([CALL_OK, "SERVER_LOST", "tool_error"])),
        max_size=80,
    )
)
def test_the_rings_keep_their_bounds_and_the_counts_their_sums(
    ended: list[tuple[float, str]],
) -> None:
    calls = RecentCalls(kept=8, kept_slow=4)
    for number, (took, outcome) in enumerate(ended, start=1):
        calls.record(_call(number, duration=took, outcome=outcome))
    for selection, bound in (("recent", 8), ("failed", 8), ("slow", 4)):
        found = calls.select(selection, limit=1_000, now=1_000.0)  # type: ignore[arg-type]
        assert len(found) <= bound
    slow = calls.select("slow", limit=1_000, now=1_000.0)
    assert [c.duration for c in slow] == sorted((t for t, _ in ended), reverse=True)[:4]
    if ended:
        traffic = calls.traffic["time"]
        assert traffic.calls == sum(traffic.buckets) == len(ended)
        assert traffic.failed == sum(outcome != CALL_OK for _, outcome in ended)


async def test_a_successful_call_is_remembered_with_all_fields(bench: Bench) -> None:
    recent = bench.worker.executor.recent
    assert recent is not None
    await bench.serve("time")
    caller = bench.caller()
    context = f"00-{'1' * 32}-{'2' * 16}-01"
    for state in ("", "k=" + "v" * 3_000):
        await caller.call(
            "time", agent="a", session="s1", traceparent=context, tracestate=state,
            arguments=b'{"text": "not-kept"}',
        )  # fmt: skip
    second, first = recent.select("recent", limit=10, now=0.0)
    assert b"not-kept" not in repr(list(recent._recent)).encode()
    for call in (first, second):
        assert (call.server_id, call.tool, call.tenant, call.agent) == (
            "time", "echo", "default", "a",
        )  # fmt: skip
        assert (call.session, call.trace_id, call.outcome) == ("s1", "1" * 32, CALL_OK)
        assert call.instance_id
        assert [phase.name for phase in call.phases][-1] == "the server works"
        assert sum(phase.duration for phase in call.phases) == pytest.approx(call.duration)
    assert recent.select("recent", limit=10, now=0.0, name="1" * 32) == [second, first]
    assert len(recent.select("slow", limit=10, now=first.started_at)) == 2
    assert recent.traffic["time"].calls == 2

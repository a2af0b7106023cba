"""Token buckets and concurrent calls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.core.tools.policy import TenantUsage, TokenBuckets, ToolPolicy
from leaseway.spec.policy import Rate, TenantLimits
from leaseway.wire.errors import Fault, Reason

RATE = Rate(3, 60.0)


def test_as_many_calls_as_the_rate_names_may_come_at_once_and_then_one_at_a_time() -> None:
    buckets = TokenBuckets()
    assert [buckets.take(("a",), RATE, 100.0) for _ in range(3)] == [0, 0, 0]
    assert buckets.take(("a",), RATE, 100.0) == pytest.approx(20.0)
    assert buckets.take(("b",), RATE, 100.0) == 0
    assert buckets.take(("a",), RATE, 119.0) == pytest.approx(1.0)
    assert buckets.take(("a",), RATE, 120.0) == 0


@given(st.lists(st.floats(0, 30), max_size=60), st.integers(1, 5), st.floats(0.5, 20))
def test_in_no_time_more_calls_pass_than_twice_the_rate(
    pauses: list[float], calls: int, seconds: float
) -> None:
    buckets, rate, now = TokenBuckets(), Rate(calls, seconds), 0.0
    passed: list[float] = []
    for pause in pauses:
        now += pause
        wait = buckets.take(("a",), rate, now)
        assert 0 <= wait <= seconds / calls * 1.001
        if not wait:
            passed.append(now)
    for start in passed:
        within = [each for each in passed if start <= each < start + seconds]
        assert len(within) <= 2 * calls


def test_buckets_that_are_full_again_are_forgotten() -> None:
    buckets = TokenBuckets()
    for number in range(100):
        buckets.take((str(number),), RATE, float(number))
    assert len(buckets) <= 21


def test_concurrent_calls_of_a_tenant_are_limited_until_they_end() -> None:
    usage = TenantUsage()
    policy = ToolPolicy("mutating", limits=TenantLimits(concurrent=2))
    assert usage.start_call("acme", "a", policy, 0.0)
    assert usage.start_call("acme", "b", policy, 0.0)
    with pytest.raises(Fault) as raised:
        usage.start_call("acme", "a", policy, 0.0)
    assert (raised.value.reason, raised.value.started) == (Reason.RATE_LIMITED, "no")
    assert usage.start_call("rival", "a", policy, 0.0)
    usage.end_call("acme")
    assert usage.start_call("acme", "a", policy, 0.0)


def test_a_call_beyond_the_rate_gets_a_delay() -> None:
    usage = TenantUsage()
    policy = ToolPolicy("external", rate=Rate(1, 10.0))
    assert not usage.start_call("acme", "web", policy, 0.0)
    with pytest.raises(Fault) as raised:
        usage.start_call("acme", "web", policy, 4.0)
    assert raised.value.retry_delay == pytest.approx(6.0)
    assert not usage.start_call("rival", "web", policy, 4.0)

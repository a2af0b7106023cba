"""The instances in the output of `leaseway servers`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.cli import memory

from leaseway.cli.output.instances import HEADERS, rows, summary
from leaseway.sdk import InstanceInfo
from leaseway.wire.messages.states import ServerState

NOW = datetime(2026, 1, 2, tzinfo=UTC)
READY = InstanceInfo(
    worker="w1",
    id="i1",
    state="ready",
    lease_id="",
    pid=7,
    starts=1,
    launch_hash="l1",
    role="shared",
    failures=0,
    circuit="closed",
    next_start_at=None,
)
SPARE = replace(READY, id="i2", role="spare")
LEASED = replace(READY, id="i3", role="leased", lease_id="x-1")
BROKEN = replace(
    READY,
    state="backoff",
    pid=None,
    failures=6,
    circuit="open",
    next_start_at=NOW + timedelta(seconds=2.5),
)
SERVER = replace(memory.SERVER, id="db", shared=False, workers=("w1",), instances=(LEASED, BROKEN))
DOWN = replace(
    SERVER,
    state=ServerState.FAILED,
    instances=(),
    failures=6,
    next_try_at=NOW + timedelta(seconds=3.6),
)


def summary_of(*instances: InstanceInfo, now: datetime = NOW) -> str:
    """Return the summary of a server with these instances."""
    return summary(replace(SERVER, instances=instances), now)


def test_instances_are_counted_by_role_or_state() -> None:
    assert summary_of() == ""
    assert summary_of(READY, replace(READY, worker="w2")) == "2 ready"
    assert summary_of(LEASED, LEASED, SPARE, replace(SPARE, state="starting")) == (
        "2 leased, 1 spare, 1 starting"
    )
    assert summary_of(replace(READY, state="idle", pid=None)) == "1 idle"
    assert summary_of(replace(LEASED, state="disconnected")) == "1 disconnected"


def test_backoff_shows_failures_and_the_next_try() -> None:
    assert summary_of(BROKEN) == "backoff on w1 (6 failures in a row, next try in 2.5 s)"
    later = NOW + timedelta(seconds=3)
    assert summary_of(replace(BROKEN, failures=1), now=later) == (
        "backoff on w1 (1 failure, next try when it is needed)"
    )


def test_each_instance_has_a_row() -> None:
    first, second = rows([SERVER], NOW)
    assert len(first) == len(second) == len(HEADERS)
    assert first[:7] == ("db", "w1", "i3", "leased", "ready", 7, "x-1")
    assert first[-3:] == (0, "closed", None)
    assert second[-3:] == (6, "open", "next try in 2.5 s")


def test_a_failed_server_shows_failures_and_the_next_try() -> None:
    assert summary(DOWN, NOW) == "not up (6 failures in a row, next try in 3.6 s)"
    trying = replace(DOWN, failures=1, next_try_at=None)
    assert summary(trying, NOW) == "not up (1 failure, a try is in progress)"
    later = NOW + timedelta(seconds=5)
    assert summary(DOWN, later) == "not up (6 failures in a row, next try when a worker is free)"
    (row,) = rows([DOWN], NOW)
    assert len(row) == len(HEADERS)
    assert [cell for cell in row if cell is not None] == ["db", "not up", 6, "next try in 3.6 s"]


def test_a_failed_configuration_is_shown_with_running_instances() -> None:
    degraded = replace(DOWN, state=ServerState.DEGRADED, instances=(READY,))
    assert summary(degraded, NOW) == (
        "1 ready, newest configuration not up (6 failures in a row, next try in 3.6 s)"
    )
    assert [row[4] for row in rows([degraded], NOW)] == ["ready", "newest configuration not up"]

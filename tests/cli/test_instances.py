"""What `leaseway servers` says of instances."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from leaseway.cli.instances import HEADERS, rows, summary
from leaseway.sdk import InstanceInfo, ServerInfo

NOW = datetime(2026, 1, 2, tzinfo=UTC)
READY = InstanceInfo("w1", "i1", "ready", "", 7, 1, "l1", "shared", 0, "closed", None)
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


def test_instances_are_counted_by_what_they_do() -> None:
    assert summary([], NOW) == ""
    assert summary([READY, replace(READY, worker="w2")], NOW) == "2 ready"
    assert summary([LEASED, LEASED, SPARE, replace(SPARE, state="starting")], NOW) == (
        "2 leased, 1 spare, 1 starting"
    )
    assert summary([replace(READY, state="idle", pid=None)], NOW) == "1 idle"
    assert summary([replace(LEASED, state="disconnected")], NOW) == "1 disconnected"


def test_a_server_that_does_not_start_says_how_often_it_failed_and_when_it_is_tried() -> None:
    assert summary([BROKEN], NOW) == "backoff on w1 (6 failures in a row, next try in 2.5 s)"
    later = NOW + timedelta(seconds=3)
    assert summary([replace(BROKEN, failures=1)], later) == (
        "backoff on w1 (1 failure, next try when it is needed)"
    )


def test_each_instance_has_a_row() -> None:
    server = ServerInfo(
        "db", "", "ready", "stdio", False, 1, "", "", "", "l1", "e1", ("w1",), (LEASED, BROKEN)
    )
    first, second = rows([server], NOW)
    assert len(first) == len(second) == len(HEADERS)
    assert first[:7] == ("db", "w1", "i3", "leased", "ready", 7, "x-1")
    assert first[-3:] == (0, "closed", None)
    assert second[-3:] == (6, "open", "next try in 2.5 s")

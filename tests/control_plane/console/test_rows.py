"""The console's rows have what the messages of the command line have."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from tests.control_plane.core.builders import spec

from leaseway.control_plane.console import records
from leaseway.control_plane.console.records import ServerRows
from leaseway.control_plane.console.rows import row
from leaseway.control_plane.plane import Plane
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2, catalog_pb2, leases_pb2

MESSAGES: list[type[Message]] = [
    admin_pb2.Approval,
    admin_pb2.CallRecord,
    admin_pb2.Event,
    admin_pb2.Problem,
    admin_pb2.Traffic,
    admin_pb2.WorkerStatus,
    catalog_pb2.InstanceStatus,
    catalog_pb2.ServerStatus,
    catalog_pb2.Tool,
    leases_pb2.Lease,
]


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_row_has_every_field_of_its_message_and_is_json(kind: type[Message]) -> None:
    names = [field.name for field in kind.DESCRIPTOR.fields]
    shown = {"server_id": "server", "worker_id": "worker"}
    found = row(kind())
    assert list(found) == [shown.get(name, name) for name in names]
    assert json.loads(json.dumps(found)) == found


def test_times_are_seconds_and_messages_that_are_not_set_are_null() -> None:
    call = admin_pb2.CallRecord(
        server_id="kit",
        started_at=Timestamp(seconds=5, nanos=500_000_000),
        phases=[admin_pb2.CallPhase(name="send", offset=Duration(seconds=2))],
    )
    found = row(call, without=("message",))
    assert (found["server"], found["started_at"], found["duration"]) == ("kit", 5.5, None)
    assert found["phases"] == [{"name": "send", "offset": 2.0, "duration": None}]
    assert "message" not in found


def test_maps_and_lists_are_kept() -> None:
    status = admin_pb2.WorkerStatus(
        worker=catalog_pb2.WorkerRef(id="w1"), labels={"zone": "a"}, servers=["kit"]
    )
    found = row(status)
    assert (found["labels"], found["servers"]) == ({"zone": "a"}, ["kit"])
    assert found["worker"]["id"] == "w1"


async def test_rows_that_take_long_to_build_stay_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plane, now, worked = Plane(epoch=1), 100.0, itertools.count()
    clocks = SimpleNamespace(monotonic=lambda: now, thread_time=lambda: float(next(worked)))
    monkeypatch.setattr(records, "time", clocks)
    rows = ServerRows(plane)
    assert rows.all() == []  # which has taken a second
    with plane.transition() as (state, moment):
        state.apply_config({VariantKey("a"): spec("a")}, frozenset(), (), moment)
    assert rows.all() == []
    now = 125.0
    assert [row["id"] for row in rows.all()] == ["a"]

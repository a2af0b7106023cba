"""What time the kit says it is."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from leaseway.data_plane.kit.clock import current_time
from leaseway.server import ToolError, ToolResult

SUMMER = current_time(lambda: datetime(2026, 7, 1, 12, 30, tzinfo=UTC))


def told(**arguments: str) -> ToolResult:
    assert SUMMER.function is not None
    result = SUMMER.function(arguments)
    assert isinstance(result, ToolResult)
    return result


def test_the_time_is_told_in_utc_by_default() -> None:
    reply = told()
    assert reply.structured == {
        "timezone": "UTC",
        "datetime": "2026-07-01T12:30:00+00:00",
        "day_of_week": "Wednesday",
        "is_dst": False,
    }
    assert json.loads(reply.text) == reply.structured


def test_the_time_is_told_in_a_zone_with_its_summer_time() -> None:
    structured = told(timezone="Europe/Berlin").structured
    assert structured is not None
    assert structured["datetime"] == "2026-07-01T14:30:00+02:00"
    assert structured["is_dst"] is True


@pytest.mark.parametrize(
    "name", ["Mars/Base", "", "../../etc/passwd", "/etc/passwd", "a\0b", "Europe"]
)
def test_what_is_no_time_zone_is_refused_with_an_example(name: str) -> None:
    with pytest.raises(ToolError, match="America/New_York"):
        told(timezone=name)

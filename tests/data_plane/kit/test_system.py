"""`current_time` in time zones."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from leaseway.data_plane.kit.system import current_time
from leaseway.server import ToolError, ToolResult

SUMMER = current_time(lambda: datetime(2026, 7, 1, 12, 30, tzinfo=UTC))


def call(**arguments: str) -> ToolResult:
    assert SUMMER.function is not None
    result = SUMMER.function(arguments)
    assert isinstance(result, ToolResult)
    return result


def test_the_default_time_zone_is_utc() -> None:
    result = call()
    assert result.structured == {
        "timezone": "UTC",
        "datetime": "2026-07-01T12:30:00+00:00",
        "day_of_week": "Wednesday",
        "is_dst": False,
    }
    assert json.loads(result.text) == result.structured


def test_a_time_zone_has_its_summer_time() -> None:
    structured = call(timezone="Europe/Berlin").structured
    assert structured is not None
    assert structured["datetime"] == "2026-07-01T14:30:00+02:00"
    assert structured["is_dst"] is True


@pytest.mark.parametrize(
    "name", ["Mars/Base", "", "../../etc/passwd", "/etc/passwd", "a\0b", "Europe"]
)
def test_an_unknown_time_zone_is_an_error_with_an_example(name: str) -> None:
    with pytest.raises(ToolError, match="America/New_York"):
        call(timezone=name)

"""What time it is, anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from leaseway.server import Tool, ToolError, ToolResult


def current_time(now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Tool:
    """Return the tool `current_time`; `now` is the clock, aware of its time zone."""
    return Tool(
        name="current_time",
        title="Current time",
        description="Tells the current date and time in a time zone.",
        input_schema={
            "type": "object",
            "properties": {
                "timezone": {
                    "type": "string",
                    "description": "IANA name, such as Europe/Berlin. Default: UTC.",
                    "maxLength": 64,
                }
            },
            "additionalProperties": False,
        },
        output_schema={
            "type": "object",
            "properties": {
                "timezone": {"type": "string"},
                "datetime": {"type": "string", "description": "ISO 8601 with offset, to seconds"},
                "day_of_week": {"type": "string"},
                "is_dst": {"type": "boolean", "description": "Whether summer time is in force"},
            },
            "required": ["timezone", "datetime", "day_of_week", "is_dst"],
        },
        annotations={"readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
        function=lambda arguments: _tell(arguments, now()),
    )


def _tell(arguments: Mapping[str, Any], now: datetime) -> ToolResult:
    name = arguments.get("timezone", "UTC")
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError(
            f"{name!r} is no IANA time zone. Use a name like UTC or America/New_York."
        ) from None
    local = now.astimezone(zone)
    told = {
        "timezone": name,
        "datetime": local.isoformat(timespec="seconds"),
        "day_of_week": local.strftime("%A"),
        "is_dst": bool(local.dst()),
    }
    return ToolResult(json.dumps(told), told)

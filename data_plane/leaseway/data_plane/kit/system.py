"""`current_time` and `get_env`: the time, and environment variables that are no credentials."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from leaseway.data_plane.kit.schemas import READ_ONLY, arguments_schema, result_schema
from leaseway.server import Tool, ToolError, ToolResult
from leaseway.wire.secrets.secret_names import is_secret_text

_OWN_PREFIXES: Final = ("LEASEWAY_", "_LEASEWAY_")


def _utc_now() -> datetime:
    return datetime.now(UTC)


def current_time(now: Callable[[], datetime] = _utc_now) -> Tool:
    """Return the tool `current_time`; `now` returns a datetime with a time zone."""
    return Tool(
        name="current_time",
        title="Current time",
        description="Returns the current date and time in a time zone.",
        input_schema=arguments_schema(
            {
                "timezone": {
                    "type": "string",
                    "description": "IANA name, such as Europe/Berlin. Default: UTC.",
                    "maxLength": 64,
                }
            }
        ),
        output_schema=result_schema(
            {
                "timezone": {"type": "string"},
                "datetime": {"type": "string", "description": "ISO 8601 with offset, to seconds"},
                "day_of_week": {"type": "string"},
                "is_dst": {"type": "boolean", "description": "Whether summer time is in force"},
            }
        ),
        annotations=READ_ONLY,
        function=partial(_time, now),
    )


def _time(now: Callable[[], datetime], arguments: Mapping[str, Any]) -> ToolResult:
    name = arguments.get("timezone", "UTC")
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolError(
            f"{name!r} is no IANA time zone. Use a name like UTC or America/New_York."
        ) from None
    local = now().astimezone(zone)
    structured = {
        "timezone": name,
        "datetime": local.isoformat(timespec="seconds"),
        "day_of_week": local.strftime("%A"),
        "is_dst": bool(local.dst()),
    }
    return ToolResult(json.dumps(structured), structured)


def get_env(environment: Mapping[str, str]) -> Tool:
    visible = {
        name: text
        for name, text in environment.items()
        if not (name.startswith(_OWN_PREFIXES) or is_secret_text(name, text))
    }

    def run(arguments: Mapping[str, Any]) -> ToolResult:
        name = arguments.get("name")
        if name is None:
            names = sorted(visible)
            return ToolResult("\n".join(names), {"names": names})
        if name not in visible:
            raise ToolError(
                f"The variable {name!r:.200} is not set, or hidden because it looks like a"
                " credential; call get_env without a name to list the visible variables."
            )
        return ToolResult(visible[name], {"value": visible[name]})

    return Tool(
        name="get_env",
        title="Environment variable",
        description="Returns an environment variable of the server, or the names of all visible"
        " ones. Variables that look like credentials are hidden.",
        input_schema=arguments_schema(
            {
                "name": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 256,
                    "description": "Default: return the names.",
                }
            }
        ),
        annotations=READ_ONLY,
        function=run,
    )

"""Leaseway's own toolset `mcp_admin`: its names and tool definitions (design.md#leases).

The control plane lists it, every worker serves it, and the SDK routes its calls.
"""

from __future__ import annotations

import json
from typing import Any, Final

ADMIN_TOOLSET: Final = "mcp_admin"
"""The id of the toolset; no configured server may have it."""

RELEASE_TOOL: Final = "mcp_release"
"""Releases a lease of the caller's session, for models."""

_MAX_ID: Final = 64

_RELEASE: Final[dict[str, Any]] = {
    "name": RELEASE_TOOL,
    "title": "Release a leased MCP server",
    "description": (
        "Release what this session leases of an MCP server.\n\n"
        "A leased server has a separate client (a process or connection) for this session. "
        "Call this once you are sure that you no longer need that server's tools. What the server "
        "kept for this session, such as open pages or unsaved state, is lost then; a later "
        "call of one of its tools starts with a fresh client."
    ),
    "inputSchema": {
        "type": "object",
        "properties": {
            "serverId": {
                "type": "string",
                "minLength": 1,
                "maxLength": _MAX_ID,
                "description": "The id of the server, as the reminder to release it names it.",
            }
        },
        "required": ["serverId"],
        "additionalProperties": False,
    },
    "annotations": {
        "title": "Release a leased MCP server",
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": True,
        "openWorldHint": False,
    },
}

TOOL_DEFINITIONS: Final[dict[str, bytes]] = {
    RELEASE_TOOL: json.dumps(_RELEASE, ensure_ascii=False, separators=(",", ":")).encode()
}
"""The definition of each tool by name, as in `tools/list`."""


def reminder(server_id: str) -> str:
    """Return the text that tells a model to release its new lease."""
    call = f'{RELEASE_TOOL}({{"serverId": "{server_id}"}})'
    return (
        f"You now hold a lease of server {server_id}: a separate client runs for this "
        "session, and it remembers what you do with it. Once you are sure that you no longer need "
        f"its tools, release it: call {call} of {ADMIN_TOOLSET}, or in a program "
        f'session.release("{server_id}").'
    )


def release_target(arguments: bytes) -> str | None:
    """Return the server in the arguments of `mcp_release`, or None if they are invalid."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    server_id = parsed.get("serverId") if isinstance(parsed, dict) else None
    return server_id if isinstance(server_id, str) and 0 < len(server_id) <= _MAX_ID else None

"""Leaseway's own toolset `mcp_admin`: its names and tool definitions (design.md#leases).

The control plane lists it, every worker serves it, and the SDK routes its calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

ADMIN_TOOLSET: Final = "mcp_admin"
"""The id of the toolset; no configured server may have it."""

RELEASE_TOOL: Final = "mcp_release"
"""Releases a lease of the caller's session, for models."""

LOGIN_TOOL: Final = "mcp_login"
"""Has the person for whom a model works log in to a server, for models."""

WITHOUT_LOGIN: Final = "leaseway/withoutLogin"
"""The key of `_meta` of `mcp_login` with all servers to which the person has not logged in."""

_PAGE: Final = (
    "The person is sent to a page to log in, or the error has the address of that page: tell it to "
    "the person. List the tools again afterwards."
)
_MAX_ID: Final = 64
_MAX_NAMED: Final = 20


def _definition(
    name: str,
    title: str,
    description: str,
    server: str,
    *,
    destructive: bool,
    open_world: bool,
    meta: dict[str, Any] | None = None,
) -> bytes:
    """Return the definition of a tool whose one argument is a server, described by `server`."""
    definition: dict[str, Any] = {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {
                "serverId": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": _MAX_ID,
                    "description": server,
                }
            },
            "required": ["serverId"],
            "additionalProperties": False,
        },
        "annotations": {
            "title": title,
            "readOnlyHint": False,
            "destructiveHint": destructive,
            "idempotentHint": True,
            "openWorldHint": open_world,
        },
    }
    if meta:
        definition["_meta"] = meta
    return json.dumps(definition, ensure_ascii=False, separators=(",", ":")).encode()


def login_definition(servers: Sequence[str] = ()) -> bytes:
    """Return the definition of `mcp_login`.

    Args:
        servers: The servers to which the person has not logged in; the description names some.
    """
    description = (
        "Have the person you work for log in to an MCP server.\n\n"
        "Some servers act for a person, and list their tools only once that person has logged in. "
        f"Call this if you need such a server. {_PAGE}"
    )
    if servers:
        named = ", ".join(servers[:_MAX_NAMED])
        more = f" and {len(servers) - _MAX_NAMED} more" if len(servers) > _MAX_NAMED else ""
        description += f"\n\nServers without a login: {named}{more}."
    return _definition(
        LOGIN_TOOL,
        "Log in to an MCP server",
        description,
        "The id of the server.",
        destructive=False,
        open_world=True,
        meta={WITHOUT_LOGIN: list(servers)} if servers else None,
    )


def login_description(server: str) -> str:
    """Return the description of `mcp_login` for clients that see one server only."""
    return (
        f"Have the person you work for log in to the MCP server {server}.\n\n"
        "It acts for a person, and lists its tools only once that person has logged in. "
        f"{_PAGE}"
    )


def _release_definition() -> bytes:
    return _definition(
        RELEASE_TOOL,
        "Release a leased MCP server",
        "Release what this session leases of an MCP server.\n\n"
        "A leased server has a separate client (a process or connection) for this session. "
        "Call this once you are sure that you no longer need that server's tools. What the server "
        "kept for this session, such as open pages or unsaved state, is lost then; a later "
        "call of one of its tools starts with a fresh client.",
        "The id of the server, as the reminder to release it names it.",
        destructive=True,
        open_world=False,
    )


TOOL_DEFINITIONS: Final[dict[str, bytes]] = {
    LOGIN_TOOL: login_definition(),
    RELEASE_TOOL: _release_definition(),
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


def named_server(arguments: bytes) -> str | None:
    """Return the server in the arguments of one of the tools, or None if they are invalid."""
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    server_id = parsed.get("serverId") if isinstance(parsed, dict) else None
    return server_id if isinstance(server_id, str) and 0 < len(server_id) <= _MAX_ID else None

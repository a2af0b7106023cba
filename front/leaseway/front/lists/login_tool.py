"""The tool that logs in to a server, as clients that see only that server have it: no argument."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from leaseway.front.protocol.messages import encode
from leaseway.front.protocol.results import is_login
from leaseway.sdk import Tool
from leaseway.wire.messages.admin import WITHOUT_LOGIN, login_description

_NO_ARGUMENTS: Final[dict[str, Any]] = {"type": "object", "additionalProperties": False}


def login_to(server: str, tools: Iterable[Tool]) -> list[Tool]:
    """Return the tool for a login to a server, which lists its own tools after that.

    Args:
        server: The server that clients see.
        tools: The tools of all servers, as they are listed to whoever may have to log in.
    """
    return [
        replace(tool, description=login_description(server), input_schema=_NO_ARGUMENTS, extra={})
        for tool in tools
        if server in servers_of(tool)
    ]


def login_arguments(server: str, tool: Tool) -> bytes | None:
    """Return the arguments of a call of that tool; None for any other tool.

    Args:
        server: The server that the client sees; empty means all.
        tool: The tool that it calls.
    """
    if server in ("", tool.server_id) or not is_login(tool):
        return None
    return encode({"serverId": server})


def servers_of(tool: Tool) -> Iterable[str]:
    """Return the servers to which a person may log in by a tool; none for any other tool."""
    meta = tool.extra.get("_meta") if is_login(tool) else None
    servers = meta.get(WITHOUT_LOGIN) if isinstance(meta, dict) else None
    return servers if isinstance(servers, list) else ()

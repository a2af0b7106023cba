"""The tool that logs in to a server, for clients that see only that server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.front.tools import make_tool

from leaseway.front.lists.login_tool import login_arguments, login_to
from leaseway.wire.messages.admin import login_definition


def login_tool(*servers: str) -> Any:
    definition = json.loads(login_definition(servers))
    return make_tool(
        "mcp_login",
        server_id="mcp_admin",
        input_schema=definition["inputSchema"],
        extra={"_meta": definition.get("_meta")},
    )


def test_a_client_of_one_server_is_offered_the_login_to_that_server_only() -> None:
    others = [f"server-{number}" for number in range(50)]
    tools = [make_tool("read", server_id="mail"), login_tool(*others, "mail")]
    [offered] = login_to("mail", tools)
    assert "MCP server mail." in offered.description
    assert "properties" not in offered.input_schema
    assert login_arguments("mail", offered) == b'{"serverId":"mail"}'
    assert login_to("files", tools) == []


@pytest.mark.parametrize("scope", ["", "mcp_admin"])
def test_a_client_of_all_servers_says_which_one_it_logs_in_to(scope: str) -> None:
    assert login_arguments(scope, login_tool("mail")) is None

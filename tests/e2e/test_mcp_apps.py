"""Two official example servers of MCP Apps that have one `ui://` URI, behind one front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import TextContent, TextResourceContents
from tests.conftest import ServerCommand
from tests.e2e.mcp_front import front
from tests.e2e.system import running

EXTENSION = "io.modelcontextprotocol/ui"
MIME_TYPE = "text/html;profile=mcp-app"
APPS = ("react", "vanillajs")


def page_of(command: list[str]) -> str:
    """Return the page that a server serves as its app."""
    return (Path(command[0]).resolve().parent / "mcp-app.html").read_text()


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_a_host_shows_the_app_of_the_server_whose_tool_it_called(
    tmp_path: Path, npm_server: ServerCommand, era: str
) -> None:
    commands = {name: npm_server(f"mcp-server-basic-{name}") for name in APPS}
    servers: dict[str, Any] = {
        name: {
            "transport": "stdio",
            "command": command[0],
            "args": ["--stdio"],
            "truely-stateless": True,
            "transform": [{"prefix": f"{name}_"}],
        }
        for name, command in commands.items()
    }
    async with (
        running(tmp_path, servers) as (system, _),
        front(system) as url,
        Client(url, mode=era) as client,
    ):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        shown = {}
        for name in APPS:
            # What hosts do (MCP Apps, 2026-01-26): the tool names its resource, which is read and
            # shown with the result; both names of the member are in use.
            tool = tools[f"{name}_get-time"]
            assert tool.meta is not None
            uri = tool.meta["ui"]["resourceUri"]
            assert uri.startswith("ui://")
            assert tool.meta["ui/resourceUri"] == uri
            (content,) = (await client.read_resource(uri)).contents
            assert isinstance(content, TextResourceContents)
            assert (str(content.uri), content.mime_type) == (uri, MIME_TYPE)
            shown[uri] = content.text
            assert content.text == page_of(commands[name])
            result = await client.call_tool(tool.name, {})
            assert isinstance(result.content[0], TextContent)
        assert len(shown) == 2
        listed = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert listed == set(shown)

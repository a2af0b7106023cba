"""What a client is told of a tool that does not exist, at the address of one server and of all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.front.harness import ACCEPT, MODERN, front, host

from leaseway.sdk.testing import FakeLeaseway


def read() -> str:
    return "x"


@pytest.mark.parametrize("path", ["", "/notes"])
@pytest.mark.parametrize(("name", "hint"), [("reed", "Did you mean 'read'?"), ("zzz", "list")])
async def test_an_unknown_tool_is_told_with_a_reason_and_what_to_do(
    path: str, name: str, hint: str
) -> None:
    headers = {**ACCEPT, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"}
    params = {"name": name, "arguments": {}, "_meta": MODERN}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    with FakeLeaseway() as fake:
        fake.server("notes").tool(read)
        async with asyncio.timeout(BOUND), front(fake) as url, host(url + path) as client:
            named = {**headers, "Mcp-Name": name}
            async with client.http.post(client.url, json=message, headers=named) as answer:
                error: dict[str, Any] = (await answer.json())["error"]
    assert error["data"] == {"reason": "TOOL_NOT_FOUND", "started": "no"}
    assert (error["code"], hint in error["message"]) == (-32602, True), error

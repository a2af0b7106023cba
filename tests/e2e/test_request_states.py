"""Calls of several rounds on leased servers, by clients without a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.system import official_server, running
from tests.front.harness import Host, host

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "host", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
TOOL = "test_input_required_result_request_state"
OTHER = "test_input_required_result_tampered_state"


class Rounds:
    """Calls of a tool, whose server accepts only a state that the same process gave."""

    def __init__(self, client: Host) -> None:
        self._client = client

    async def first(self, tool: str = TOOL) -> dict[str, Any]:
        """Call a tool; return the params of the next try."""
        params = {"name": tool, "arguments": {}, "_meta": META}
        asked = await self._client.send("tools/call", params)
        assert asked["resultType"] == "input_required"
        answer = {"action": "accept", "content": {"confirmed": True, "ok": True, "name": "a"}}
        return {
            **params,
            "requestState": asked["requestState"],
            "inputResponses": dict.fromkeys(asked["inputRequests"], answer),
        }

    async def again(self, params: dict[str, Any]) -> str:
        """Try again; return the text of the result."""
        text: str = (await self._client.send("tools/call", params))["content"][0]["text"]
        return text


@pytest.fixture(params=["argument", "none"])
async def fronts(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[list[Rounds]]:
    """Run two fronts without a common key, with a leased server."""
    server = official_server("everything.py", "--stdio")
    if request.param == "none":
        server["sessions_from"] = ["handle"]  # so that its tools have no argument for a session
    async with AsyncExitStack() as stack:
        system, _ = await stack.enter_async_context(running(tmp_path, {"everything": server}))
        rounds = []
        for _ in range(2):
            front = await system.start_front()
            stack.push_async_callback(front.end)
            client = await stack.enter_async_context(host(f"http://{front.address}/mcp"))
            rounds.append(Rounds(client))
        yield rounds


async def test_a_lease_waits_for_the_next_try_and_its_state_is_for_that_alone(
    fronts: list[Rounds],
) -> None:
    here, elsewhere = fronts
    next_try = await here.first()
    for wrong in ({"name": OTHER}, {"arguments": {"a": 1}}, {"requestState": "made up"}):
        with pytest.raises(LookupError, match="not given to this caller for this request"):
            await here.again({**next_try, **wrong})
    with pytest.raises(LookupError, match="not given to this caller for this request"):
        await elsewhere.again(next_try)
    assert await here.again(next_try) == "state-ok"

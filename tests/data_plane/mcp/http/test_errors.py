"""What operators read of connections that failed."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiohttp
import pytest
from mcp_types import PromptsCapability, ServerCapabilities
from yarl import URL

from leaseway.data_plane.core.ports import NO_PROMPTS_RESOURCES
from leaseway.data_plane.mcp.http import errors as answers
from leaseway.data_plane.mcp.protocol.features.listing import list_prompts_resources
from leaseway.data_plane.mcp.protocol.messages.pending import RawRequest, Unanswered

ERRORS = [
    TimeoutError(),
    aiohttp.ConnectionTimeoutError(),
    aiohttp.ClientPayloadError("Response payload is not completed"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientConnectionResetError("Cannot write to closing transport"),
    aiohttp.ClientError(),
    ConnectionResetError(104, "Connection reset by peer"),
    asyncio.IncompleteReadError(b"", 1),
]


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_a_broken_connection_is_told_in_words_and_not_by_the_name_of_a_class(
    error: Exception, written: bool
) -> None:
    entry = RawRequest("s")
    entry.written = written
    message = answers.broken("s", URL("http://a/mcp"), error, entry, False).message
    assert "Error" not in message
    assert message.endswith(".")
    assert not message.endswith("..")


def test_what_the_system_says_of_a_connection_is_kept() -> None:
    error = ConnectionResetError(104, "Connection reset by peer")
    assert answers.what_broke(error) == "Connection reset by peer"
    assert "ended in the middle" in answers.what_broke(aiohttp.ClientPayloadError())


class Refusing:
    async def request(self, *_: Any) -> bytes:
        raise Unanswered(answers.status_fault("s", 500, {}))


async def test_a_status_for_a_list_of_prompts_is_told_as_one() -> None:
    capabilities = ServerCapabilities(prompts=PromptsCapability())
    prompts_resources = await list_prompts_resources(
        cast("Any", Refusing()), capabilities, 5, NO_PROMPTS_RESOURCES
    )
    assert prompts_resources.gaps == (
        "prompts/list failed: The server s answered with HTTP status 500.",
    )

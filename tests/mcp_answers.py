"""What the MCP front answers over HTTP, as a client reads it."""

from __future__ import annotations

import json
from typing import Any

import aiohttp


async def response_in(answer: aiohttp.ClientResponse) -> Any:
    """Return the response: JSON, or the last event of the stream that a slow request gets."""
    if answer.content_type != "text/event-stream":
        return await answer.json()
    events = [line async for line in answer.content if line.startswith(b"data: {")]
    return json.loads(events[-1].removeprefix(b"data: "))

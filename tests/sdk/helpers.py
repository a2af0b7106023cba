"""Helpers of the fakes and their tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

BOUND = 30.0
"""Seconds that any single wait of a test may take."""


def text_result(text: str) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text}]}).encode()


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.001)


async def in_thread(work: Callable[[], Any]) -> Any:
    """Run blocking work in a thread, and return its result."""
    async with asyncio.timeout(BOUND):
        return await asyncio.to_thread(work)

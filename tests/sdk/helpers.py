"""What the fakes and their tests say and wait with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from google.protobuf.duration_pb2 import Duration

BOUND = 30.0
"""Seconds that any single wait of a test may take."""


def text_result(text: str) -> bytes:
    return json.dumps({"content": [{"type": "text", "text": text}]}).encode()


def duration(seconds: float) -> Duration:
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(BOUND):
        while not condition():
            await asyncio.sleep(0.001)

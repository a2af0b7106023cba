"""Letting an ending reach its end."""

from __future__ import annotations

import asyncio

__all__ = ["uninterrupted"]


async def uninterrupted(task: asyncio.Task[None]) -> None:
    """Wait for a bounded task however often the waiter is cancelled; then be cancelled."""
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError
    if not task.cancelled():
        task.result()

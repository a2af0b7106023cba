"""A client process that is to be killed: it says each step of its sessions before it takes it.

Usage: `abandoner.py ADDRESS SESSIONS TTL NAME CALLING`. All sessions run at once: each acquires a
lease of `counter`, calls it, is CALLING seconds in a call, releases, and begins again, until
somebody ends it. Where a machine is so slow that a lease runs out, or that there is no room, it
begins again, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from leaseway.sdk import AsyncClient, AsyncSession, DeadlineExceeded, LeasewayError


async def live(session: AsyncSession, ttl: float, calling: float) -> None:
    """Go through the life of a lease again and again."""
    while True:
        with contextlib.suppress(LeasewayError):
            await live_once(session, ttl, calling)


async def live_once(session: AsyncSession, ttl: float, calling: float) -> None:
    """Go through the life of a lease."""

    def say(step: str) -> None:
        print(step, session.key, flush=True)

    say("asking")
    await session.acquire("counter", ttl=ttl)
    say("holding")
    await session.call_tool("counter_add", {"by": 1})
    say("calling")
    try:
        await session.call_tool("counter_sleep", {"seconds": 600}, timeout=calling)
    except DeadlineExceeded:
        say("releasing")
    await session.release("counter")


async def main() -> None:
    """Run the sessions."""
    address, sessions, ttl, name, calling = sys.argv[1:]
    async with AsyncClient(address, agent=name) as client, asyncio.TaskGroup() as group:
        for number in range(int(sessions)):
            group.create_task(live(client.session(f"{name}-{number}"), float(ttl), float(calling)))


if __name__ == "__main__":
    asyncio.run(main())

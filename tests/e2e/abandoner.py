"""A client process that is to be killed: it says each step of its sessions before it takes it.

Usage: `abandoner.py ADDRESS SESSIONS TTL NAME`. All sessions run at once: each acquires a lease
of `counter`, calls it, is in a long call, releases, and begins again, until somebody ends it.
"""

from __future__ import annotations

import asyncio
import sys

from leaseway.sdk import AsyncClient, AsyncSession, DeadlineExceeded


async def live(session: AsyncSession, ttl: float) -> None:
    """Go through the life of a lease again and again."""

    def say(step: str) -> None:
        print(step, session.key, flush=True)

    while True:
        say("asking")
        await session.acquire("counter", ttl=ttl)
        say("holding")
        await session.call_tool("counter_add", {"by": 1})
        say("calling")
        try:
            await session.call_tool("counter_sleep", {"seconds": 60}, timeout=0.5)
        except DeadlineExceeded:
            say("releasing")
        await session.release("counter")


async def main() -> None:
    """Run the sessions."""
    address, sessions, ttl, name = sys.argv[1:]
    async with AsyncClient(address, agent=name) as client, asyncio.TaskGroup() as group:
        for number in range(int(sessions)):
            group.create_task(live(client.session(f"{name}-{number}"), float(ttl)))


if __name__ == "__main__":
    asyncio.run(main())

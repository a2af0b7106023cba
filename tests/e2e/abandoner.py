"""A client process for tests that kill it: it prints each step of its sessions beforehand.

Usage: `abandoner.py ADDRESS SESSIONS TTL NAME CALLING`. All sessions run at once: each acquires a
lease of `counter`, calls it, stays CALLING seconds in a call, releases, and repeats this, also if
the lease expires on a slow machine or there is no capacity.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from leaseway.sdk import AsyncClient, AsyncSession, DeadlineExceeded, LeasewayError


async def repeat(session: AsyncSession, ttl: float, calling: float) -> None:
    """Use one lease after the other."""
    while True:
        with contextlib.suppress(LeasewayError):
            await use_lease(session, ttl, calling)


async def use_lease(session: AsyncSession, ttl: float, calling: float) -> None:
    """Acquire a lease, call, and release it."""

    def report(step: str) -> None:
        print(step, session.key, flush=True)

    report("asking")
    await session.acquire("counter", ttl=ttl)
    report("holding")
    await session.call_tool("counter_add", {"by": 1})
    report("calling")
    try:
        await session.call_tool("counter_sleep", {"seconds": 600}, timeout=calling)
    except DeadlineExceeded:
        report("releasing")
    await session.release("counter")


async def main() -> None:
    """Run the sessions."""
    address, sessions, ttl, name, calling = sys.argv[1:]
    async with AsyncClient(address, agent=name) as client, asyncio.TaskGroup() as group:
        for number in range(int(sessions)):
            group.create_task(
                repeat(client.session(f"{name}-{number}"), float(ttl), float(calling))
            )


if __name__ == "__main__":
    asyncio.run(main())

"""The working parts of one client, made together in its event loop and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from leaseway.sdk.calls.caller import CallRunner
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.forks import begin_use
from leaseway.sdk.leases.manager import LeaseManager
from leaseway.sdk.transport.control import ControlPlane
from leaseway.sdk.transport.identity import Identity
from leaseway.sdk.transport.server_requests import Handlers
from leaseway.sdk.transport.workers import WorkerPool
from leaseway.wire.errors import Fault

_CLOSE_BOUND = 10.0
_SETTLE_BOUND = 0.2
"""Seconds that gRPC is given to tell a loop the last of what was cancelled."""

_open: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakSet[Runtime]] = WeakKeyDictionary()
"""What is open in each loop."""


class RuntimeOwner(Protocol):
    """A client, as its sessions and results need it: what opens its working parts."""

    _handlers: Handlers | None
    _on_approval: Callable[[Any], object] | None
    _made: Runtime | None

    def _runtime(self) -> Runtime:
        """Return the working parts, opened at the first use.

        Raises:
            RuntimeError: The client is closed, or used from another event loop or process.
        """


class Runtime:
    """What an `AsyncClient` consists of behind its surface.

    The client owns it and nothing in it refers to the client: one that is dropped unclosed is
    collected and takes its tasks along, so that nobody renews leases that nobody can use.

    Attributes:
        loop: The event loop that all parts live in.
        own_session: The session of calls made outside of one, with a random name.
    """

    def __init__(self, identity: Identity) -> None:
        begin_use()
        self.loop = asyncio.get_running_loop()
        self.identity = identity
        self._siblings().add(self)
        self.own_session = f"client-{secrets.token_hex(8)}"
        self.control = ControlPlane(identity)
        self.pool = WorkerPool(identity)
        self.resolver = Resolver(self.control)
        self.leases = LeaseManager(self.control, self.pool, self.own_session)
        self.caller = CallRunner(identity, self.resolver, self.pool, self.leases, self.own_session)

    async def close(self) -> None:
        """Release what this client acquired, then end all tasks, streams and channels."""
        try:
            async with asyncio.timeout(_CLOSE_BOUND):
                await self.leases.release_owned()
        except TimeoutError:
            pass  # each lease that could not be released ends by itself
        finally:
            await self.leases.close()
            await self.resolver.close()
            await self.pool.close()
            await self.control.close()
            siblings = self._siblings()
            siblings.discard(self)
            if not siblings:
                await _settled()

    def abort(self) -> None:
        """End all tasks without waiting for anybody; safe from any thread."""
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(self._abort)
            except RuntimeError:
                return  # the loop was closed in between: its tasks are gone

    def _siblings(self) -> WeakSet[Runtime]:
        return _open.setdefault(self.loop, WeakSet())

    def _abort(self) -> None:
        self._siblings().discard(self)
        self.leases.abort()
        self.resolver.abort()
        self.pool.abort()


def forget_frames(task: asyncio.Task[Any]) -> None:
    """Let a task that has ended keep nothing alive: neither its client's channels nor its owner.

    Its fault has a traceback, and that all that it was raised in.
    """
    # Asked for its result, a task gives away the traceback that it keeps.
    with contextlib.suppress(Exception, asyncio.CancelledError):
        task.result()
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Fault):
        error.__traceback__ = error.__context__ = None


async def _settled() -> None:
    """Wait until gRPC has nothing to tell this loop any more.

    The loop may be closed next (`asyncio.run`), and what came for it after that would be an error
    in whatever loop runs by then: they share one queue.
    """
    ending = [task for task in asyncio.all_tasks() if _is_end_of_call(task)]
    if ending:
        await asyncio.wait(ending, timeout=_SETTLE_BOUND)


def _is_end_of_call(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__qualname__", "") == "_AioCall._handle_status_once_received"

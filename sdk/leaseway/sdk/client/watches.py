"""Tools as they change: the list now, then a new one whenever something in it differs.

Nothing is queued: a change is read when the caller asks for the next list, so that a slow caller
gets the newest one and skips those between.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, Self

import grpc

from leaseway.sdk.catalog.tools import ToolList
from leaseway.sdk.client.listings import fetch_tools
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.runtime import Runtime
from leaseway.wire.bounds import STARTUP_TIMEOUT
from leaseway.wire.errors import SETTLING, UNANSWERED, Fault, Reason
from leaseway.wire.timing.backoff import Backoff

_RETRY: Final = Backoff(initial=0.1, maximum=2.0)
_PASSING: Final = UNANSWERED | SETTLING | {Reason.DRAINING, Reason.OVERLOADED}
"""Why a list may be missing for a while only, as when the control plane restarts."""


class AsyncToolWatch:
    """The tools that a tenant sees, as often as they change: for `async for`.

    The first list comes at once, or its error is raised; each later one differs from the one
    before in its tools or in `pending`. A control plane that is gone is waited for, and a server
    that is removed has no tools until it is back. It ends when the client is closed. Breaking off
    needs no clean-up.
    """

    def __init__(self, client: AsyncToolWatches, servers: Sequence[str] | None) -> None:
        self._client = client
        self._servers = list(servers) if servers is not None else None
        self._last: ToolList | None = None
        self._read_at = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ToolList:
        if self._client._closed:
            raise StopAsyncIteration
        runtime, _ = self._client._at()
        registry_version = runtime.resolver.watch()
        while not registry_version.ended:
            if self._last is not None:
                await registry_version.wait_beyond(self._read_at)
            tools = await self._read(runtime)
            if tools is None or registry_version.ended:
                break
            self._read_at = max(self._read_at, tools.registry_version)
            if self._last is None or _differs(self._last, tools):
                self._last = tools
                return tools
        raise StopAsyncIteration

    async def _read(self, runtime: Runtime) -> ToolList | None:
        """Return the list as it is now, or None where the client was closed meanwhile."""
        attempt = 0
        registry_version = runtime.resolver.registry_version
        while True:
            try:
                deadline = runtime.loop.time() + STARTUP_TIMEOUT
                return await self._fetch(runtime, deadline)
            except Fault as fault:
                if registry_version.ended:
                    return None
                if self._last is None or fault.reason not in _PASSING:
                    raise error_from_fault(fault) from None
            except (asyncio.CancelledError, grpc.aio.BaseError):
                # What waits on a channel that is closed ends in one of these ways.
                if registry_version.ended and not _cancelling():
                    return None
                raise
            await asyncio.sleep(_RETRY.delay(attempt))
            attempt += 1

    async def _fetch(self, runtime: Runtime, deadline: float) -> ToolList:
        try:
            return await fetch_tools(runtime, deadline, servers=self._servers)
        except Fault as fault:
            if self._last is None or fault.reason is not Reason.TOOL_NOT_FOUND:
                raise
        # One of the servers was removed: what is left of them is in the list of all.
        tools = await fetch_tools(runtime, deadline, servers=None)
        wanted = [tool for tool in tools if tool.server_id in (self._servers or ())]
        return ToolList(wanted, tools.registry_version, tools.pending, tools.config_loaded_at)


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class AsyncToolWatches(ABC):
    """The part of `AsyncClient` that watches tools."""

    _closed: bool

    @abstractmethod
    def _at(self) -> tuple[Runtime, str]: ...

    def watch_tools(self, servers: Sequence[str] | None = None) -> AsyncToolWatch:
        """Watch the tools that the tenant sees: the list now, then a new one at each change.

        Args:
            servers: Only tools of these server ids; None means all.

        Returns:
            What `async for` reads lists from, until the client is closed.
        """
        self._at()  # which says where the client is closed
        return AsyncToolWatch(self, servers)


def _differs(before: ToolList, after: ToolList) -> bool:
    return list(before) != list(after) or before.pending != after.pending

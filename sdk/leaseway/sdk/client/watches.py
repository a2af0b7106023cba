"""Watches the tool list: yields the current list, then a new one after each change.

Nothing is queued: a list is fetched when the caller asks for the next one, so a slow caller gets
the newest list and skips those between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Self

import grpc

from leaseway.sdk.catalog.tools import ToolList
from leaseway.sdk.client.listings import fetch_tools
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.runtime import Runtime, RuntimeOwner
from leaseway.wire.bounds import STARTUP_TIMEOUT
from leaseway.wire.errors import SETTLING, UNANSWERED, Fault, Reason
from leaseway.wire.timing.backoff import RECONNECT

_TRANSIENT: Final = UNANSWERED | SETTLING | {Reason.DRAINING, Reason.OVERLOADED}
"""Reasons for which a list is missing for a while only, for example during a restart."""


class AsyncToolWatch:
    """The tools that a tenant sees, as they change: an asynchronous iterator of `ToolList`s.

    The first list is returned at once, or its error is raised. Each later list differs from the
    one before in its tools or in `pending`. While the control plane is unreachable, the watch
    waits; a server that is removed has no tools until it is added again. The iterator ends when
    the client is closed. Iterating may stop early without clean-up.
    """

    def __init__(self, client: RuntimeOwner, servers: Sequence[str] | None) -> None:
        self._client = client
        self._servers = list(servers) if servers is not None else None
        self._last: ToolList | None = None
        self._read_at = 0
        self._lists: int | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ToolList:
        if self._client._closed:
            raise StopAsyncIteration
        runtime = self._client._runtime()
        registry_version = runtime.resolver.watch()
        while not registry_version.ended:
            if self._last is not None:
                await registry_version.wait_beyond(self._read_at, self._lists)
            self._lists = registry_version.lists
            tools = await self._read(runtime)
            if tools is None or registry_version.ended:
                break
            self._read_at = max(self._read_at, tools.registry_version)
            if self._last is None or _differs(self._last, tools):
                self._last = tools
                return tools
        raise StopAsyncIteration

    async def _read(self, runtime: Runtime) -> ToolList | None:
        """Return the current list, or None if the client was closed meanwhile."""
        attempt = 0
        registry_version = runtime.resolver.registry_version
        while True:
            try:
                deadline = runtime.loop.time() + STARTUP_TIMEOUT
                return await self._fetch(runtime, deadline)
            except Fault as fault:
                if registry_version.ended:
                    return None
                if self._last is None or fault.reason not in _TRANSIENT:
                    raise error_from_fault(fault) from None
            except (asyncio.CancelledError, grpc.aio.BaseError):
                # A request on a channel that is closed ends with one of these.
                if registry_version.ended and not _is_cancelling():
                    return None
                raise
            await asyncio.sleep(RECONNECT.delay(attempt))
            attempt += 1

    async def _fetch(self, runtime: Runtime, deadline: float) -> ToolList:
        try:
            return await fetch_tools(runtime, deadline, servers=self._servers)
        except Fault as fault:
            if self._last is None or fault.reason is not Reason.TOOL_NOT_FOUND:
                raise
        # One of the servers was removed: select the tools of the others from the whole list.
        tools = await fetch_tools(runtime, deadline, servers=None)
        wanted = [tool for tool in tools if tool.server_id in (self._servers or ())]
        return ToolList(wanted, tools.registry_version, tools.pending, tools.config_loaded_at)


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _differs(before: ToolList, after: ToolList) -> bool:
    return list(before) != list(after) or before.pending != after.pending

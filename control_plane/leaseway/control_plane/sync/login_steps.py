"""Steps of people's logins that workers take for the console (design.md#tokens-for-remote-servers).

The control plane sees no token and no secret of a login: workers have them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from leaseway.v1 import sync_pb2

_TIMEOUT: Final = 40.0
"""Seconds that a worker may take, of which most are an authorization server's."""

MAX_OPEN: Final = 512
"""Steps of one worker at a time: anybody can ask for one, and their messages share its stream.

That is more than the worker lets wait for authorization servers (`oauth/logins/links.py`): it knows
which servers are slow, and leaves room for the logins of the others."""


class _Stream(Protocol):
    @property
    def ended(self) -> asyncio.Future[str]: ...

    def send(self, message: sync_pb2.SyncResponse) -> None: ...


class LoginFailed(Exception):
    """A step failed; the message is a sentence for the person."""


class LoginSteps:
    """Asks workers to take steps, and matches their results.

    Args:
        streams: The stream to each connected worker.
    """

    def __init__(self, streams: Mapping[str, _Stream]) -> None:
        self._streams = streams
        self._open: dict[tuple[str, int], asyncio.Future[sync_pb2.LoginResult]] = {}
        self._last = 0

    async def take(self, worker_id: str, step: sync_pb2.LoginStep) -> sync_pb2.LoginResult:
        """Let a worker take a step.

        Raises:
            LoginFailed: It failed, or the worker is not connected (any more).
        """
        stream = self._streams.get(worker_id)
        if stream is None:
            raise LoginFailed("The login failed: its worker is not connected any more.")
        if sum(worker == worker_id for worker, _ in self._open) >= MAX_OPEN:
            raise LoginFailed("Many people are logging in; try again in a moment.")
        self._last = step.id = self._last + 1
        key = (worker_id, step.id)
        result: asyncio.Future[sync_pb2.LoginResult] = asyncio.get_running_loop().create_future()
        self._open[key] = result
        try:
            stream.send(sync_pb2.SyncResponse(login_step=step))
            await asyncio.wait(
                (result, stream.ended), timeout=_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            del self._open[key]
        if not result.done():
            if not stream.ended.done():
                raise LoginFailed("The login failed: its worker does not answer.")
            raise LoginFailed(
                "The login failed: the connection to its worker has ended. Try again; if somebody"
                " is logged in, its link says so."
            )
        found = result.result()
        if found.message:
            raise LoginFailed(found.message)
        return found

    async def make_link(self, server_id: str, tenant: str, user: str) -> tuple[str, str]:
        """Return a worker and the ticket of its link for a login.

        Raises:
            LoginFailed: No worker can make one.
        """
        why = LoginFailed("The login failed: no worker is connected.")
        for worker_id in sorted(self._streams):
            step = sync_pb2.LoginStep(server_id=server_id, tenant=tenant, user=user)
            try:
                return worker_id, (await self.take(worker_id, step)).ticket
            except LoginFailed as failure:
                why = failure  # another worker may know the server
        raise why

    def handle_result(self, worker_id: str, result: sync_pb2.LoginResult) -> None:
        """Resolve a step; ignore a result that nothing waits for."""
        waiting = self._open.get((worker_id, result.id))
        if waiting is not None and not waiting.done():
            waiting.set_result(result)

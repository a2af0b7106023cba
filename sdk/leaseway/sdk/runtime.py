"""The connections, caches and tasks of one client, opened and closed together in its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

from leaseway.sdk.calls.caller import CallRunner
from leaseway.sdk.calls.media import MediaReader
from leaseway.sdk.catalog.resolver import Resolver
from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.leases.manager import LeaseManager
from leaseway.sdk.transport.control import ControlPlane
from leaseway.sdk.transport.forks import mark_grpc_used
from leaseway.sdk.transport.green_threads import check_threads
from leaseway.sdk.transport.identity import ClientIdentity
from leaseway.sdk.transport.server_requests import Handlers
from leaseway.sdk.transport.session_users import SessionUsers
from leaseway.sdk.transport.workers import WorkerPool
from leaseway.wire.channels.local import LocalWorker
from leaseway.wire.errors import Fault

_RELEASE_TIMEOUT = 10.0
_KEY_INTERVAL = 10.0
"""Seconds between looks at the file of the credential, which is replaced long before its end."""
_CANCEL_TIMEOUT = 0.2
"""Seconds that gRPC gets to report the end of cancelled RPCs to a loop."""

GetScope = Callable[[], "tuple[Runtime, str]"]
"""Returns a client's runtime and the key of the session to call in, or raises a RuntimeError."""

_open: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakSet[object]] = WeakKeyDictionary()
"""The open runtimes of each loop, and the planes of fakes."""

_closing: set[asyncio.Task[None]] = set()
"""What closes runtimes; a loop itself holds no task."""


class RuntimeOwner(Protocol):
    """An `AsyncClient`, as its sessions, watches and results use it."""

    _closed: bool
    _handlers: Handlers | None
    _on_approval: Callable[[Any], object] | None
    _open_runtime: Runtime | None

    def _scope(self) -> tuple[Runtime, str]:
        """Return the runtime and the key of the session for calls outside a session."""

    def _runtime(self) -> Runtime:
        """Return the runtime, which the first use opens.

        Raises:
            RuntimeError: The client is closed, or used from another event loop or process.
        """


class Runtime:
    """The parts of one `AsyncClient`.

    Nothing in it refers to the client. So a client that is dropped without `close` is collected,
    and its tasks stop renewing leases that no caller can use.

    Args:
        identity: The client's names and credential.
        media: Reads the artifacts in results; holds the client weakly.
        local: The worker of this process, or None.

    Attributes:
        loop: The event loop of all parts.
        own_session: The random key of the session for calls outside a session.
        users: The users for whom its sessions call.
    """

    def __init__(
        self, identity: ClientIdentity, media: MediaReader, local: LocalWorker | None = None
    ) -> None:
        check_threads()
        mark_grpc_used()
        self.loop = asyncio.get_running_loop()
        self.identity = identity
        users_of(self.loop).add(self)
        self.own_session = f"client-{secrets.token_hex(8)}"
        self.control = ControlPlane(identity)
        self.pool = WorkerPool(identity, local)
        self.resolver = Resolver(self.control)
        self.users = SessionUsers(identity.user, identity.subject_token)
        self.leases = LeaseManager(self.control, self.pool, self.own_session, self.users)
        self.caller = CallRunner(
            identity,
            self.resolver,
            self.pool,
            self.leases,
            own_session=self.own_session,
            users=self.users,
            media=media,
        )
        self._known_key: str | None = None
        self._next_look: asyncio.TimerHandle | None = None
        self.follow_key()

    def follow_key(self) -> None:
        """Use a credential that was replaced for calls to come, and look again later.

        Other requests read it when they begin. Calls in flight go on with the old one.
        """
        file = self.identity.key_file
        if file is None:
            return
        known, self._known_key = self._known_key, file.current()
        if known not in (None, self._known_key):
            self.pool.replace_streams()
        self.pool.end_replaced_streams()
        self._next_look = self.loop.call_later(_KEY_INTERVAL, self.follow_key)

    def _stop_following(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()

    async def close(self, sessions: Iterable[str] = ()) -> None:
        """Leave all leases, then close all tasks and channels.

        If the caller is cancelled meanwhile, as at the end of a block whose time is over, that is
        done all the same.

        Args:
            sessions: Sessions that end with the client, besides its own one.
        """
        closing = self.loop.create_task(self._close(sessions))
        _closing.add(closing)
        closing.add_done_callback(_closing.discard)
        await asyncio.shield(closing)

    async def _close(self, sessions: Iterable[str]) -> None:
        self._stop_following()
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT):
                await self.leases.leave_all({self.own_session, *sessions})
        except TimeoutError:
            pass  # a lease that is not renewed expires
        finally:
            await self.leases.close()
            await self.resolver.close()
            await self.pool.close()
            await self.control.close()
            await leave_loop(self)

    def abort(self) -> None:
        """Cancel all tasks without waiting for them. Thread-safe."""
        if not self.loop.is_closed():
            try:
                self.loop.call_soon_threadsafe(self._abort)
            except RuntimeError:
                return  # the loop was closed meanwhile, and its tasks with it

    def _abort(self) -> None:
        self._stop_following()
        users_of(self.loop).discard(self)
        self.leases.abort()
        self.resolver.abort()
        self.pool.abort()


def raise_error_of(task: asyncio.Task[Any]) -> None:
    """Raise the error of an ended task, as callers see it; no-op if it has none."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Fault):
        raise error_from_fault(error) from None
    if error is not None:
        raise error


def forget_frames(task: asyncio.Task[Any]) -> None:
    """Drop the traceback of an ended task, whose frames keep the client's channels alive."""
    # A task drops the traceback that it keeps when its result is read.
    with contextlib.suppress(Exception, asyncio.CancelledError):
        task.result()
    error = None if task.cancelled() else task.exception()
    if isinstance(error, Fault):
        error.__traceback__ = error.__context__ = None


def users_of(loop: asyncio.AbstractEventLoop) -> WeakSet[object]:
    """Return what has RPCs in a loop that go on while a client closes: clients, and planes."""
    return _open.setdefault(loop, WeakSet())


async def leave_loop(user: object) -> None:
    """Tell that a user of the running loop has closed; the last one waits for the end of RPCs."""
    users = users_of(asyncio.get_running_loop())
    users.discard(user)
    if not users:
        await _wait_for_cancelled_rpcs()


async def _wait_for_cancelled_rpcs() -> None:
    """Wait until gRPC has reported the end of all RPCs to this loop.

    The loop may be closed next, for example by `asyncio.run`. gRPC has one queue for all loops: a
    later report would raise an error in the loop that runs then.
    """
    ending = [task for task in asyncio.all_tasks() if _is_end_of_rpc(task)]
    if ending:
        await asyncio.wait(ending, timeout=_CANCEL_TIMEOUT)


def _is_end_of_rpc(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__qualname__", "") == "_AioCall._handle_status_once_received"

"""Artifacts: images and sounds that a worker keeps for the session whose call returned them.

Their bytes are streamed from that worker, found by the reference alone: from those that the client
has met, or by asking the control plane once. A stream that breaks goes on where it was.
"""

from __future__ import annotations

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing
from functools import lru_cache
from typing import Any, Final, Self

from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.operators.operations import fetch_workers
from leaseway.sdk.runtime import Runtime, RuntimeOwner
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.sdk.validation import check_seconds, check_text
from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.artifact_refs import MAX_REFERENCE, incarnation_mark, reference_mark
from leaseway.wire.timing.backoff import Backoff

_SILENCE: Final = 30.0
"""Seconds that a worker may take for one part, unless it is told otherwise."""
_TRIES: Final = 5
_RETRY: Final = Backoff(initial=0.1, maximum=2.0)
_PASSING: Final = frozenset({Reason.WORKER_LOST, Reason.OVERLOADED, Reason.CANCELLED})
"""Why a stream may have broken that is worth another try."""

At = Callable[[], tuple[Runtime, str]]
_mark_of: Final = lru_cache(1024)(incarnation_mark)


class AsyncArtifact:
    """One artifact; made by `read_artifact`. Awaited it is all bytes, iterated its parts.

        content = await client.read_artifact(ref)
        async for part in client.read_artifact(ref):
            ...  # at most 256 KiB

    It is read once. Breaking off needs no clean-up.
    """

    def __init__(self, owner: object, at: At, ref: str, timeout: float | None) -> None:
        self._owner = owner  # a client that is collected would end the stream
        self._at = at
        self._timeout = _SILENCE if timeout is None else timeout
        self._mime_type = ""
        self._byte_length: int | None = None
        self._received = 0
        self._parts = self._read()
        self.ref = ref

    @property
    def mime_type(self) -> str:
        """Its MIME type, once its first part was read; a RuntimeError before."""
        self._check_begun()
        return self._mime_type

    @property
    def byte_length(self) -> int:
        """How many bytes it has, once its first part was read; a RuntimeError before."""
        self._check_begun()
        return self._byte_length or 0

    def _check_begun(self) -> None:
        if self._byte_length is None:
            raise RuntimeError("An artifact is described once its first part was read.")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._parts)

    def __await__(self) -> Generator[Any, None, bytes]:
        return self.read().__await__()

    async def read(self) -> bytes:
        """Return all bytes that were not read yet.

        Raises:
            RuntimeError: They cannot be read any more: that failed before, or it was closed.
        """
        rest = b"".join([part async for part in self._parts])
        if self._byte_length is None or self._received < self._byte_length:
            raise RuntimeError(
                "This artifact was closed, or reading it failed before; read_artifact begins anew."
            )
        return rest

    async def close(self) -> None:
        """End the stream now; nothing more can be read."""
        await self._parts.aclose()

    async def _read(self) -> AsyncGenerator[bytes]:
        failed = 0
        while self._byte_length is None or self._received < self._byte_length:
            before = self._received
            try:
                async with aclosing(self._stream()) as parts:
                    async for part in parts:
                        yield part
            except Fault as fault:
                failed = 1 if self._received > before else failed + 1
                await self._recover(fault, failed)

    async def _stream(self) -> AsyncGenerator[bytes]:
        """Yield parts from where the last stream broke.

        Raises:
            Fault: It broke, or cannot begin.
        """
        runtime, session = self._at()
        worker = await self._worker(runtime)
        request = execution_pb2.ReadArtifactRequest(
            client=runtime.identity.client_info,
            tenant=runtime.identity.tenant,
            session=session,
            ref=self.ref,
            offset=self._received,
        )
        link = runtime.pool.link(worker)
        with link.stream(link.execution.ReadArtifact, request) as next_message:
            while (message := await next_message(self._timeout)) is not None:
                if self._byte_length is None:
                    self._mime_type, self._byte_length = message.mime_type, message.byte_length
                if message.data:
                    self._received += len(message.data)
                    yield message.data
        if self._byte_length is None or self._received < self._byte_length:
            raise Fault(Reason.WORKER_LOST, f"Worker '{worker.id}' ended the artifact early.")

    async def _worker(self, runtime: Runtime) -> WorkerRun:
        mark = reference_mark(self.ref)
        if mark is None:
            raise _lost(self.ref, "that is no reference of an artifact")
        for worker in runtime.pool.workers:
            if _mark_of(worker.incarnation) == mark:
                return worker
        return await self._listed(runtime, mark)

    async def _listed(self, runtime: Runtime, mark: str) -> WorkerRun:
        deadline = runtime.loop.time() + self._timeout
        for info in await fetch_workers(runtime, deadline):
            if info.state != "lost" and _mark_of(info.incarnation) == mark:
                return WorkerRun(info.id, info.incarnation, info.address)
        raise _lost(self.ref, "the run of the worker that kept it has ended")

    async def _recover(self, fault: Fault, failed: int) -> None:
        """Wait before another try, or raise why there is none."""
        if fault.reason not in _PASSING or failed >= _TRIES:
            raise error_from_fault(fault) from None
        await asyncio.sleep(fault.retry_delay or _RETRY.delay(failed - 1))
        if fault.reason is Reason.WORKER_LOST:
            await self._check_run()

    async def _check_run(self) -> None:
        """Raise `ArtifactLost` where the control plane knows that the worker's run has ended."""
        mark = reference_mark(self.ref)
        assert mark is not None
        try:
            await self._listed(self._at()[0], mark)
        except Fault as fault:
            if fault.reason is Reason.ARTIFACT_LOST:
                raise error_from_fault(fault) from None


class AsyncArtifacts(ABC):
    """The part of `AsyncClient` and `AsyncSession` that reads artifacts."""

    @abstractmethod
    def _at(self) -> tuple[Runtime, str]: ...

    def read_artifact(self, ref: str, *, timeout: float | None = None) -> AsyncArtifact:
        """Read an image or a sound that a call of this session returned by reference.

        Args:
            ref: The `artifact` of a content item.
            timeout: Seconds that the worker may take for each part; None means 30.

        Returns:
            What can be awaited, for all bytes, or iterated with `async for`, for parts of them;
            that raises `ArtifactLost` where there is no such artifact any more, or not in this
            session.
        """
        _check(ref, timeout)
        return AsyncArtifact(self, self._at, ref, timeout)


class ClientMedia:
    """Reads artifacts for the results of a client, as long as that is there and open.

    Attributes:
        wait: Waits for a coroutine in the calling thread, where the client is used from other
            threads than its loop's; else None.
    """

    def __init__(self, client: RuntimeOwner) -> None:
        self._client = weakref.ref(client)
        self.wait: Callable[[Callable[[], Coroutine[Any, Any, Any]]], object] | None = None

    async def load(self, session: str, ref: str) -> bytes:
        """Read the artifact of a call in a session."""
        client = self._client()
        if client is None:
            raise RuntimeError("The client that made the call is gone; keep it to read images.")

        def at() -> tuple[Runtime, str]:
            return client._runtime(), session

        return await AsyncArtifact(client, at, ref, None).read()


def _check(ref: object, timeout: object) -> None:
    check_text("ref", ref)
    if timeout is not None:
        check_seconds("timeout", timeout)


def _lost(ref: str, why: str) -> Fault:
    return Fault(
        Reason.ARTIFACT_LOST,
        f"There is no artifact {ref[:MAX_REFERENCE]!r}: {why}. Repeat the call that returned it.",
    )

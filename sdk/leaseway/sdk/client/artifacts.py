"""Artifacts: images and sounds that a worker keeps for the session whose call returned them.

Their bytes are streamed from that worker. The reference identifies it among the workers that the
client is connected to; if it is none of them, the control plane is asked. A stream that breaks is
resumed at the same offset.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing
from functools import lru_cache
from typing import Any, Final, Self

from leaseway.sdk.errors import error_from_fault
from leaseway.sdk.operators.operations import fetch_workers
from leaseway.sdk.runtime import GetScope, Runtime, RuntimeOwner
from leaseway.sdk.transport.handles import ProcessHandle
from leaseway.sdk.transport.workers import WorkerRun
from leaseway.sdk.validation import check_seconds, check_text
from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.artifact_refs import MAX_REFERENCE, incarnation_mark, reference_mark
from leaseway.wire.timing.backoff import RECONNECT

_PART_TIMEOUT: Final = 30.0
"""Default of the seconds that a worker may take for one part."""
_MAX_FAILURES: Final = 5
"""Limit of failed tries in a row."""
_TRANSIENT: Final = frozenset({Reason.WORKER_LOST, Reason.OVERLOADED, Reason.CANCELLED})
"""Reasons after which a broken stream is resumed."""

_mark_of: Final = lru_cache(1024)(incarnation_mark)


class AsyncArtifact(ProcessHandle):
    """An image or sound; made by `read_artifact`. Await it for all bytes, or iterate its parts.

        content = await client.read_artifact(ref)
        async for part in client.read_artifact(ref):
            ...  # at most 256 KiB

    It can be read once. Reading may stop early without clean-up. Reading raises `ArtifactLost` if
    the artifact no longer exists or belongs to another session, or another `LeasewayError`. After
    that, and after a cancelled read or `close`, it raises a RuntimeError.

    Attributes:
        ref: The reference.
    """

    def __init__(self, owner: object, get_scope: GetScope, ref: str, timeout: float | None) -> None:
        self._owner = owner  # keeps the client alive, whose collection would end the stream
        self._get_scope = get_scope
        self._timeout = _PART_TIMEOUT if timeout is None else timeout
        self._mime_type = ""
        self._byte_length: int | None = None
        self._received = 0
        self._parts = self._read()
        self.ref = ref

    @property
    def mime_type(self) -> str:
        """The MIME type; raises a RuntimeError before the first part was read."""
        self._check_started()
        return self._mime_type

    @property
    def byte_length(self) -> int:
        """The size in bytes; raises a RuntimeError before the first part was read."""
        self._check_started()
        return self._byte_length or 0

    def _check_complete(self) -> None:
        """Raise a RuntimeError if the parts ended early: a generator ends with its first error."""
        if self._byte_length is None or self._received < self._byte_length:
            raise RuntimeError(
                "This artifact was closed, or reading it failed or was cancelled before; call "
                "read_artifact again."
            )

    def _check_started(self) -> None:
        if self._byte_length is None:
            raise RuntimeError("Read the artifact's first part before its type and size.")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._parts)
        except StopAsyncIteration:
            self._check_complete()
            raise

    def __await__(self) -> Generator[Any, None, bytes]:
        return self.read().__await__()

    async def read(self) -> bytes:
        """Return all bytes that were not read yet.

        Raises:
            RuntimeError: The artifact was closed, or reading it failed before.
        """
        return b"".join([part async for part in self])

    async def close(self) -> None:
        """Stop reading and end the stream."""
        await self._parts.aclose()

    async def _read(self) -> AsyncGenerator[bytes]:
        failures = 0
        while self._byte_length is None or self._received < self._byte_length:
            before = self._received
            try:
                async with aclosing(self._stream()) as parts:
                    async for part in parts:
                        yield part
            except Fault as fault:
                failures = 1 if self._received > before else failures + 1
                await self._wait_to_retry(fault, failures)

    async def _stream(self) -> AsyncGenerator[bytes]:
        """Yield the parts after those received.

        Raises:
            Fault: The stream broke or could not be opened.
        """
        runtime, session = self._get_scope()
        worker = await self._find_worker(runtime)
        request = execution_pb2.ReadArtifactRequest(
            client=runtime.identity.client_info_for(runtime.users.of(session)),
            tenant=runtime.identity.tenant,
            session=session,
            ref=self.ref,
            offset=self._received,
            subject_token=runtime.users.token_of(session),
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

    async def _find_worker(self, runtime: Runtime) -> WorkerRun:
        mark = reference_mark(self.ref)
        if mark is None:
            raise _lost_fault(self.ref, "it is not the reference of an artifact")
        for worker in runtime.pool.workers:
            if _mark_of(worker.incarnation) == mark:
                return worker
        return await self._find_listed_worker(runtime, mark)

    async def _find_listed_worker(self, runtime: Runtime, mark: str) -> WorkerRun:
        deadline = runtime.loop.time() + self._timeout
        for info in await fetch_workers(runtime, deadline):
            if info.state != "lost" and _mark_of(info.incarnation) == mark:
                return WorkerRun(info.id, info.incarnation, info.address)
        raise _lost_fault(self.ref, "the worker that kept it has exited")

    async def _wait_to_retry(self, fault: Fault, failures: int) -> None:
        """Wait before another try; raise the fault as an error if there must be none."""
        if fault.reason not in _TRANSIENT or failures >= _MAX_FAILURES:
            raise error_from_fault(fault) from None
        await asyncio.sleep(fault.retry_delay or RECONNECT.delay(failures - 1))
        if fault.reason is Reason.WORKER_LOST:
            await self._check_worker()

    async def _check_worker(self) -> None:
        """Raise `ArtifactLost` if the control plane reports that the worker has exited."""
        mark = reference_mark(self.ref)
        assert mark is not None
        try:
            await self._find_listed_worker(self._get_scope()[0], mark)
        except Fault as fault:
            if fault.reason is Reason.ARTIFACT_LOST:
                raise error_from_fault(fault) from None


Wait = Callable[[Callable[[], Coroutine[Any, Any, Any]]], object]
"""Runs a coroutine and waits for it in the calling thread."""


class ClientMedia:
    """Reads the artifacts in the results of a client, as long as the client is open.

    Attributes:
        wait: Runs a coroutine and waits for it in the calling thread, if the client is a
            synchronous one; otherwise None.
    """

    def __init__(self, client: RuntimeOwner, wait: Wait | None) -> None:
        self._client = weakref.ref(client)
        self.wait = wait

    async def load(self, session: str, ref: str) -> bytes:
        """Read the artifact of a call in a session."""
        client = self._client()
        if client is None:
            raise RuntimeError("The client of this result was dropped; keep it to read images.")

        return await AsyncArtifact(client, lambda: (client._runtime(), session), ref, None).read()


def check_artifact(ref: object, timeout: object) -> None:
    """Raise a TypeError, ValueError or InvalidRequest for parameters of the wrong type."""
    check_text("ref", ref)
    if timeout is not None:
        check_seconds("timeout", timeout)


def _lost_fault(ref: str, cause: str) -> Fault:
    return Fault(
        Reason.ARTIFACT_LOST,
        f"There is no artifact {ref[:MAX_REFERENCE]!r}: {cause}. Repeat the call that returned it.",
    )

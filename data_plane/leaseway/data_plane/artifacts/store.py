"""The artifacts of one run of a worker: images and sounds that callers read later.

The index belongs to the event loop. Bytes are decoded, written, read and removed in separate
threads, so that neither a large image nor a hanging disk delays other calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import BinaryIO, Final

from leaseway.data_plane.artifacts.storage import ArtifactStorage
from leaseway.data_plane.background import Background
from leaseway.data_plane.core.artifacts.index import (
    ArtifactIndex,
    ArtifactLimits,
    ArtifactReader,
    StoredArtifact,
)
from leaseway.data_plane.core.artifacts.media import (
    EncodedMedia,
    InvalidMedia,
    StoredMedia,
    may_hold_media,
    replace_media,
)
from leaseway.data_plane.core.calls.call import Outcome, PendingCall
from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.wire import bounds
from leaseway.wire.daemon_threads import DaemonThreads
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.artifact_refs import artifact_reference, incarnation_mark, is_reference
from leaseway.wire.sharing.limits import over_limit

_logger = logging.getLogger(__name__)

_MAX_WRITING: Final = 256 * bounds.MIB
"""Bytes of results whose media are being written. Beyond it, media remain in their results."""


def _no_limit(server_id: str, tenant: str) -> int | None:
    return None


def ignore(event: object) -> None:
    """Handle an event of which nothing needs to know."""


class ArtifactStore:
    """Stores the images and sounds of results, and reads them.

    Args:
        storage: Stores the bytes.
        incarnation: The run of the worker, for references.
        background: Owns the store's tasks.
        limits: Maximum age, size and number of artifacts.
        tenant_limit: Returns a tenant's maximum bytes, for a server and tenant; None for no limit.
        on_disk: Called with the reason when writing fails, with "" when it works again.
        on_rejected: Called with the fault of a rejected read.

    Attributes:
        failed: Number of images and sounds that could not be written.
    """

    def __init__(
        self,
        storage: ArtifactStorage,
        incarnation: str,
        background: Background,
        limits: ArtifactLimits,
        *,
        tenant_limit: Callable[[str, str], int | None] = _no_limit,
        on_disk: Callable[[str], None] = ignore,
        on_rejected: Callable[[Fault], None] = ignore,
    ) -> None:
        self._storage = storage
        self._disk = DaemonThreads()
        self._writing_bytes = 0
        self._mark = incarnation_mark(incarnation)
        self._background = background
        self._limits = limits
        self._index = ArtifactIndex(limits)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._to_remove: list[str] = []
        self._removing: asyncio.Task[None] | None = None
        self._readers: Counter[str] = Counter()
        self.failed = 0
        self._tenant_limit = tenant_limit
        self._on_disk = on_disk
        self._on_rejected = on_rejected

    def __len__(self) -> int:
        """Number of artifacts."""
        return len(self._index)

    @property
    def total_bytes(self) -> int:
        """Bytes of all artifacts."""
        return self._index.total_bytes

    @property
    def bytes_by_tenant(self) -> Mapping[str, int]:
        """Bytes of each tenant that has artifacts."""
        return self._index.bytes_by_tenant

    def store(
        self,
        call: IncomingCall,
        outcome: Outcome,
        finish: Callable[[bytes, bool], None],
        subject: str = "",
    ) -> PendingCall | None:
        """Store the media of a result, if it has any.

        Args:
            call: The call.
            outcome: Its result.
            finish: Called with the payload without the media, and `isError`.
            subject: For whom the server acted, or empty; only he reads the media.

        Returns:
            A pending call, or None if there is nothing to store; then `finish` is not called.
        """
        payload = outcome.payload
        # The thread searches a large result.
        is_small = len(payload) <= bounds.BATCH_SIZE
        if call.inline_media or (is_small and not may_hold_media(payload)):
            return None
        if self._writing_bytes + len(payload) > _MAX_WRITING:
            _logger.warning(
                "The images and sounds of a result of %s:%s remain in it: %d bytes of results "
                "already wait for the disk. Check the disk.",
                call.server_id,
                call.tool,
                self._writing_bytes,
            )
            return None
        self._writing_bytes += len(payload)
        name = f"store the media of {call.server_id}:{call.tool}"
        self._background.spawn(self._store(call, outcome, finish, subject), name)
        return _ANSWERED

    async def _store(
        self,
        call: IncomingCall,
        outcome: Outcome,
        finish: Callable[[bytes, bool], None],
        subject: str,
    ) -> None:
        writer = _MediaWriter(self._storage, call, self._mark, self._limits)
        payload = outcome.payload
        try:
            payload = await self._disk.run(replace_media, outcome.payload, writer)
            for media, stored in writer.stored:
                self._add(call, subject, media, stored)
            self.failed += writer.failed
            if writer.stored or writer.failed:
                self._on_disk(writer.disk_error)
        except Exception:
            # The result with its media is a valid result, too.
            _logger.exception("The media of %s remain in its result.", writer.tool)
        finally:
            self._writing_bytes -= len(outcome.payload)
            finish(payload, outcome.is_error)

    def _add(
        self, call: IncomingCall, subject: str, media: EncodedMedia, stored: StoredMedia
    ) -> None:
        artifact = StoredArtifact(
            ref=stored.ref,
            tenant=call.tenant,
            session=call.session,
            mime_type=media.mime_type,
            byte_length=stored.byte_length,
            stored_at=self._loop.time(),
            subject=subject,
        )
        evicted = self._index.add(artifact, self._tenant_limit(call.server_id, artifact.tenant))
        if evicted:
            _logger.info("%d artifacts were evicted for newer ones.", len(evicted))
            self._remove(evicted)
        self._schedule_expiry()

    def _schedule_expiry(self) -> None:
        next_expiry = self._index.next_expiry()
        if self._timer is None and next_expiry is not None:
            self._timer = self._loop.call_at(next_expiry, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._remove(self._index.expire(self._loop.time()))
        self._schedule_expiry()

    def _remove(self, artifacts: list[StoredArtifact]) -> None:
        self._to_remove.extend(artifact.ref for artifact in artifacts)
        if self._to_remove and self._removing is None:
            self._removing = self._background.spawn(self._remove_bytes(), "remove old artifacts")

    async def _remove_bytes(self) -> None:
        try:
            while self._to_remove:
                refs, self._to_remove = self._to_remove, []
                await self._disk.run(self._storage.remove, refs)
        finally:
            self._removing = None

    def stop(self) -> None:
        """Stop expiring artifacts; closing the storage removes them."""
        if self._timer is not None:
            self._timer.cancel()

    def find(self, ref: str, reader: ArtifactReader) -> StoredArtifact:
        """Return an artifact that a reader owns.

        Raises:
            Fault: ARTIFACT_LOST: it does not exist, or has another owner.
        """
        artifact = self._index.find(ref, reader, self._loop.time())
        if artifact is None:
            raise _lost_fault(ref)
        return artifact

    def remaining(self, artifact: StoredArtifact) -> float:
        """Return for how many more seconds an artifact is kept, unless it is evicted."""
        return self._index.remaining(artifact, self._loop.time())

    async def read_parts(
        self, artifact: StoredArtifact, start: int, stop: int
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of an artifact in parts of at most 256 KiB; must be closed.

        Args:
            artifact: The artifact, as `find` returned it.
            start: The first byte.
            stop: The byte after the last.

        Raises:
            Fault: ARTIFACT_LOST: it was removed. OVERLOADED: too many artifacts are being read.
        """
        with self._count_reader(artifact.tenant):
            try:
                file = await self._disk.run(self._open, artifact.ref, start)
            except FileNotFoundError:
                raise _lost_fault(artifact.ref) from None
            try:
                while start < stop:
                    size = min(bounds.BATCH_SIZE, stop - start)
                    part = await self._disk.run(file.read, size)
                    if not part:
                        raise _lost_fault(artifact.ref)
                    start += len(part)
                    yield part
            finally:
                self._disk.submit(file.close)  # after a read that was cancelled

    async def read(self, ref: str, reader: ArtifactReader, max_size: int) -> bytes:
        """Return all bytes of an artifact that a reader owns.

        Raises:
            Fault: ARTIFACT_LOST, OVERLOADED. INVALID_ARGUMENTS: it has more than `max_size` bytes.
        """
        artifact = self.find(ref, reader)
        if artifact.byte_length > max_size:
            raise Fault(
                Reason.INVALID_ARGUMENTS,
                f"The artifact {ref} has {artifact.byte_length} bytes; one request may send at "
                f"most {max_size}.",
            )
        async with contextlib.aclosing(self.read_parts(artifact, 0, artifact.byte_length)) as parts:
            return b"".join([part async for part in parts])

    def _open(self, ref: str, start: int) -> BinaryIO:
        file = self._storage.open(ref)
        file.seek(start)
        return file

    @contextlib.contextmanager
    def _count_reader(self, tenant: str) -> Iterator[None]:
        is_own = self._readers[tenant] >= bounds.TENANT_ARTIFACT_READERS
        if is_own or self._readers.total() >= bounds.ARTIFACT_READERS:
            limit = bounds.TENANT_ARTIFACT_READERS if is_own else bounds.ARTIFACT_READERS
            fault = over_limit(
                "artifact_reads",
                "tenant" if is_own else "worker",
                f"The worker already sends {limit} artifacts{' to this tenant' if is_own else ''}; "
                "try again soon.",
                retry_delay=0.2,
            )
            self._on_rejected(fault)
            raise fault
        self._readers[tenant] += 1
        try:
            yield
        finally:
            self._readers[tenant] -= 1
            if not self._readers[tenant]:
                del self._readers[tenant]


class _MediaWriter:
    """Writes the media of one result; used in one thread."""

    def __init__(
        self,
        storage: ArtifactStorage,
        call: IncomingCall,
        mark: str,
        limits: ArtifactLimits,
    ) -> None:
        self.stored: list[tuple[EncodedMedia, StoredMedia]] = []
        self.failed = 0
        self.disk_error = ""
        self.tool = f"{call.server_id}:{call.tool}"
        self._storage = storage
        self._call = call
        self._mark = mark
        self._max_size = min(bounds.MAX_ARTIFACT, limits.max_bytes)

    def __call__(self, media: EncodedMedia) -> StoredMedia | None:
        ref = artifact_reference(
            self._call.server_id,
            self._call.tool,
            media.mime_type,
            mark=self._mark,
            stored_at=time.time(),
            noise=secrets.randbits(80),
        )
        try:
            stored = StoredMedia(ref, self._storage.write(ref, self._checked_parts(media)))
        except InvalidMedia as error:
            self._warn(media, str(error))
            return None
        except OSError as error:
            self.failed += 1
            self.disk_error = error.strerror or str(error)
            self._warn(media, str(error))
            return None
        self.stored.append((media, stored))
        return stored

    def on_too_many(self) -> None:
        _logger.warning(
            "A result of %s has more than %d images and sounds: the others remain in it and are "
            "not kept as artifacts.",
            self.tool,
            bounds.MAX_ARTIFACTS_PER_RESULT,
        )

    def _checked_parts(self, media: EncodedMedia) -> Iterator[bytes]:
        size = 0
        for part in media.parts():
            size += len(part)
            if size > self._max_size:
                raise InvalidMedia(f"it has more than {self._max_size} bytes, the limit")
            yield part

    def _warn(self, media: EncodedMedia, reason: str) -> None:
        _logger.warning(
            "An item (%s, %s) of a result of %s remains in it and is not kept as an artifact: %s.",
            media.kind,
            media.mime_type,
            self.tool,
            reason.rstrip("."),
        )


class _Answered:
    """The `PendingCall` of a call whose server has already answered."""

    written = True

    def cancel(self, reason: str) -> None:
        pass


_ANSWERED: Final = _Answered()


def _lost_fault(ref: str) -> Fault:
    name = ref if is_reference(ref) else "of that name"
    return Fault(
        Reason.ARTIFACT_LOST,
        f"There is no artifact {name} for this tenant and session: it expired or was evicted, its "
        "worker has ended, or it belongs to another session or user. Repeat the call that "
        "returned it.",
    )

"""The artifacts of one run of a worker: kept for those who called, read by them, gone in time.

The index belongs to the loop; bytes are decoded, written, read and removed in threads of their own,
so that a picture delays no call but its own, nor does a disk that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import BinaryIO, Final, Protocol

from leaseway.data_plane.artifacts.storage import ArtifactStorage
from leaseway.data_plane.background import Background, DiskThreads
from leaseway.data_plane.core.artifacts.index import Artifact, ArtifactIndex, Retention
from leaseway.data_plane.core.artifacts.media import (
    BadMedia,
    Kept,
    Media,
    may_hold_media,
    replace_media,
)
from leaseway.data_plane.core.calls.call import Outcome, PendingCall
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.limits import over_limit
from leaseway.wire.messages.artifact_refs import artifact_reference, incarnation_mark, is_reference
from leaseway.wire.names import DEFAULT_TENANT

_logger = logging.getLogger(__name__)

_MOST_KEEPING: Final = 256 * bounds.MIB
"""Bytes of the results that may wait for their media to be kept; of those after them the media
stay in place."""


class EndingCall(Protocol):
    """A call whose result has come, as far as its media need it."""

    @property
    def call(self) -> execution_pb2.Call:
        """What was called, by whom, and whether media stay in place."""

    @property
    def trace(self) -> SpanEvents | None:
        """Takes events of the call's span, or None where it is not sampled."""

    def finish(self, payload: bytes, is_error: bool) -> None:
        """End the call with its result."""


class SpanEvents(Protocol):
    """Takes events of a span."""

    def event(self, name: str) -> None:
        """Add an event."""


class ArtifactStore:
    """Keeps the images and sounds of results, and hands them out.

    Args:
        storage: Where the bytes are.
        incarnation: The run of the worker; references name it.
        background: Runs what nobody waits for.
        retention: What may be kept.

    Attributes:
        failed: How many images and sounds the disk did not take.
        space_of: Says how many bytes a tenant may keep, by the server called; None for any.
        on_disk: Told why the disk did not take something, or with an empty text that it did.
    """

    def __init__(
        self,
        storage: ArtifactStorage,
        incarnation: str,
        background: Background,
        retention: Retention,
    ) -> None:
        self._storage = storage
        self._disk = DiskThreads()
        self._keeping = 0
        self._mark = incarnation_mark(incarnation)
        self._background = background
        self._retention = retention
        self._index = ArtifactIndex(retention)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._gone: list[str] = []
        self._removing: asyncio.Task[None] | None = None
        self._readers: Counter[str] = Counter()
        self.on_refused: Callable[[Fault], None] = lambda fault: None
        self.failed = 0
        self.space_of: Callable[[str, str], int | None] = lambda _server, _tenant: None
        self.on_disk: Callable[[str], None] = lambda _why: None

    @property
    def held(self) -> int:
        return len(self._index)

    @property
    def space(self) -> int:
        return self._index.space

    @property
    def space_of_tenants(self) -> Mapping[str, int]:
        """Bytes that are kept of each tenant that has any."""
        return self._index.space_of_tenants

    # Keeping.

    def keep(self, ending: EndingCall, outcome: Outcome) -> PendingCall | None:
        """End a call once the media of its result are kept; None where it has none to keep."""
        call = ending.call
        payload = outcome.payload
        # Looking all through a large result is left to the thread, too.
        is_small = len(payload) <= bounds.BATCH_SIZE
        if call.inline_media or (is_small and not may_hold_media(payload)):
            return None
        if self._keeping + len(payload) > _MOST_KEEPING:
            self._say_busy(call)
            return None
        if ending.trace is not None:
            ending.trace.event("images and sounds are kept")
        self._keeping += len(payload)
        what = f"keep the media of {call.server_id}:{call.tool}"
        self._background.spawn(self._keep(ending, outcome), what)
        return _ANSWERED

    async def _keep(self, ending: EndingCall, outcome: Outcome) -> None:
        keeping = _Keeping(self._storage, ending.call, self._mark, self._retention)
        payload = outcome.payload
        try:
            payload = await self._disk.run(replace_media, outcome.payload, keeping)
            for media, kept in keeping.kept:
                self._note(ending.call, media, kept)
            self.failed += keeping.refused
            if keeping.kept or keeping.refused:
                self.on_disk(keeping.why if keeping.refused else "")
        except Exception:
            # The bytes in place are a result, too.
            _logger.exception("The media of %s stay in its result.", keeping.what)
        finally:
            self._keeping -= len(outcome.payload)
            ending.finish(payload, outcome.is_error)

    def _say_busy(self, call: execution_pb2.Call) -> None:
        _logger.warning(
            "The images and sounds of a result of %s:%s stay in it and are not kept as artifacts: "
            "%d bytes of results wait for the disk already; see whether it answers.",
            call.server_id,
            call.tool,
            self._keeping,
        )

    def _note(self, call: execution_pb2.Call, media: Media, kept: Kept) -> None:
        artifact = Artifact(
            kept.ref,
            call.tenant or DEFAULT_TENANT,
            call.session,
            media.mime_type,
            kept.byte_length,
            self._loop.time(),
        )
        displaced = self._index.add(artifact, self.space_of(call.server_id, artifact.tenant))
        if displaced:
            _logger.info("%d artifacts made room for newer ones.", len(displaced))
            self._forget(displaced)
        self._watch_age()

    # Retention.

    def _watch_age(self) -> None:
        due = self._index.next_expiry()
        if self._timer is None and due is not None:
            self._timer = self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self._forget(self._index.expire(self._loop.time()))
        self._watch_age()

    def _forget(self, artifacts: list[Artifact]) -> None:
        self._gone.extend(artifact.ref for artifact in artifacts)
        if self._gone and self._removing is None:
            self._removing = self._background.spawn(self._remove(), "remove old artifacts")

    async def _remove(self) -> None:
        try:
            while self._gone:
                gone, self._gone = self._gone, []
                await self._disk.run(self._storage.remove, gone)
        finally:
            self._removing = None

    def stop(self) -> None:
        """Watch nothing any more; what is kept goes with the storage."""
        if self._timer is not None:
            self._timer.cancel()

    # Reading.

    def find(self, ref: str, tenant: str, session: str) -> Artifact:
        """Return an artifact of a tenant's session.

        Raises:
            Fault: ARTIFACT_LOST: there is none; the same where it is somebody else's.
        """
        owner = tenant or DEFAULT_TENANT
        artifact = self._index.find(ref, owner, session, self._loop.time())
        if artifact is None:
            raise _lost(ref)
        return artifact

    def remaining(self, artifact: Artifact) -> float:
        """Return for how many more seconds an artifact is kept, unless it has to make room."""
        return self._index.remaining(artifact, self._loop.time())

    async def read_parts(self, artifact: Artifact, begin: int, end: int) -> AsyncGenerator[bytes]:
        """Yield the bytes of an artifact in parts of at most 256 KiB; close it when done.

        Args:
            artifact: As `find` returned it.
            begin: The first byte.
            end: The one after the last.

        Raises:
            Fault: ARTIFACT_LOST: it was removed meanwhile. OVERLOADED: too many are being read.
        """
        with self._reader(artifact.tenant):
            try:
                file = await self._disk.run(self._open, artifact.ref, begin)
            except FileNotFoundError:
                raise _lost(artifact.ref) from None
            try:
                while begin < end:
                    size = min(bounds.BATCH_SIZE, end - begin)
                    part = await self._disk.run(file.read, size)
                    if not part:
                        raise _lost(artifact.ref)
                    begin += len(part)
                    yield part
            finally:
                self._disk.start(file.close)  # waits for a read that was given up

    async def read(self, ref: str, tenant: str, session: str, most: int) -> bytes:
        """Return an artifact of a tenant's session whole.

        Raises:
            Fault: ARTIFACT_LOST, OVERLOADED. INVALID_ARGUMENTS: it has more bytes than `most`.
        """
        artifact = self.find(ref, tenant, session)
        if artifact.byte_length > most:
            raise Fault(
                Reason.INVALID_ARGUMENTS,
                f"The artifact {ref} has {artifact.byte_length} bytes, more than the {most} that "
                "one request may send.",
            )
        async with contextlib.aclosing(self.read_parts(artifact, 0, artifact.byte_length)) as parts:
            return b"".join([part async for part in parts])

    def _open(self, ref: str, begin: int) -> BinaryIO:
        file = self._storage.open(ref)
        file.seek(begin)
        return file

    @contextlib.contextmanager
    def _reader(self, tenant: str) -> Iterator[None]:
        is_own = self._readers[tenant] >= bounds.TENANT_ARTIFACT_READERS
        if is_own or self._readers.total() >= bounds.ARTIFACT_READERS:
            most = bounds.TENANT_ARTIFACT_READERS if is_own else bounds.ARTIFACT_READERS
            fault = over_limit(
                "artifact_reads",
                "tenant" if is_own else "worker",
                f"The worker sends {most} artifacts{' to this tenant' if is_own else ''} already; "
                "try again soon.",
                retry_delay=0.2,
            )
            self.on_refused(fault)
            raise fault
        self._readers[tenant] += 1
        try:
            yield
        finally:
            self._readers[tenant] -= 1
            if not self._readers[tenant]:
                del self._readers[tenant]


class _Keeping:
    """Writes the media of one result; used in one thread."""

    def __init__(
        self,
        storage: ArtifactStorage,
        call: execution_pb2.Call,
        mark: str,
        retention: Retention,
    ) -> None:
        self.kept: list[tuple[Media, Kept]] = []
        self.refused = 0  # by the disk
        self.why = ""
        self.what = f"{call.server_id}:{call.tool}"
        self._storage = storage
        self._call = call
        self._mark = mark
        self._limit = min(bounds.MAX_ARTIFACT, retention.space)

    def __call__(self, media: Media) -> Kept | None:
        ref = artifact_reference(
            self._call.server_id,
            self._call.tool,
            media.mime_type,
            mark=self._mark,
            stored_at=time.time(),
            noise=secrets.randbits(80),
        )
        try:
            kept = Kept(ref, self._storage.write(ref, self._bounded(media)))
        except BadMedia as error:
            self._say_why_not(media, str(error))
            return None
        except OSError as error:
            self.refused += 1
            self.why = error.strerror or str(error)
            self._say_why_not(media, str(error))
            return None
        self.kept.append((media, kept))
        return kept

    def full(self) -> None:
        """Say that the rest of the result's media stay in it."""
        _logger.warning(
            "A result of %s has more than %d images and sounds: those after them stay in it and "
            "are not kept as artifacts.",
            self.what,
            bounds.MAX_ARTIFACTS_PER_RESULT,
        )

    def _bounded(self, media: Media) -> Iterator[bytes]:
        size = 0
        for part in media.parts():
            size += len(part)
            if size > self._limit:
                raise BadMedia(f"it has more than the {self._limit} bytes that are kept of one")
            yield part

    def _say_why_not(self, media: Media, why: str) -> None:
        _logger.warning(
            "An item (%s, %s) of a result of %s stays in it and is not kept as an artifact: %s.",
            media.kind,
            media.mime_type,
            self.what,
            why.rstrip("."),
        )


class _Answered:
    """A call whose server has answered: nobody there is to be told anything."""

    written = True

    def cancel(self, reason: str) -> None:
        pass


_ANSWERED: Final = _Answered()


def _lost(ref: str) -> Fault:
    name = ref if is_reference(ref) else "of that name"
    return Fault(
        Reason.ARTIFACT_LOST,
        f"There is no artifact {name} for this tenant and session: it grew too old or had to make "
        "room, its worker has ended, or a call in another session returned it. Repeat the call "
        "that returned it.",
    )

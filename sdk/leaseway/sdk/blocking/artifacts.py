"""Reading artifacts from a synchronous client."""

from __future__ import annotations

from typing import Self

from leaseway.sdk.blocking.loop_thread import background
from leaseway.sdk.client.artifacts import AsyncArtifact, AsyncArtifacts, _check


class Artifact:
    """One artifact; made by `Client.read_artifact`. Iterated it is parts of at most 256 KiB.

    It is read once. Breaking off needs no clean-up.
    """

    def __init__(self, inner: AsyncArtifact) -> None:
        self._inner = inner
        self.ref = inner.ref

    @property
    def mime_type(self) -> str:
        """Its MIME type, once its first part was read; a RuntimeError before."""
        return self._inner.mime_type

    @property
    def byte_length(self) -> int:
        """How many bytes it has, once its first part was read; a RuntimeError before."""
        return self._inner.byte_length

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        part = background().run(self._next)
        if part is None:
            raise StopIteration
        return part

    async def _next(self) -> bytes | None:
        return await anext(self._inner, None)

    def read(self) -> bytes:
        """Return all bytes that were not read yet."""
        return background().run(self._inner.read)

    def close(self) -> None:
        """End the stream now; nothing more can be read."""
        background().run(self._inner.close)


class Artifacts:
    """The part of `Client` and `Session` that reads artifacts."""

    _inner: AsyncArtifacts

    def read_artifact(self, ref: str, *, timeout: float | None = None) -> Artifact:
        """Read an image or a sound that a call of this session returned by reference.

        Args:
            ref: The `artifact` of a content item.
            timeout: Seconds that the worker may take for each part; None means 30.

        Returns:
            What can be iterated for parts, and has `read()` for all bytes; both raise
            `ArtifactLost` where there is no such artifact any more, or not in this session.
        """
        _check(ref, timeout)
        return Artifact(AsyncArtifact(self, self._inner._at, ref, timeout))

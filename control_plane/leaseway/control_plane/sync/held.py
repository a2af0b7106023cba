"""What joining workers hold, which most of them name only by a digest (design.md#sync)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from google.protobuf.message import DecodeError

from leaseway.control_plane.core.catalog.variants import Hashes
from leaseway.control_plane.sync.toolsets import MalformedMessage, hashes_from_proto
from leaseway.spec.codec import key_from_proto
from leaseway.spec.model import VariantKey
from leaseway.v1 import sync_pb2
from leaseway.wire.sharing.newest import Newest

__all__ = ["HeldHashes"]

Held = Mapping[VariantKey, Hashes]

_MAX_KEPT: Final = 16
"""Different sets of hashes that are kept to be shared."""
_SLOW_AFTER: Final = 3.0
"""Seconds after which another worker is asked for a list."""
_DIGEST_BYTES: Final = 32


class HeldHashes:
    """The hashes that workers report; workers that hold the same get the same mapping.

    A fleet holds few different sets. So a list is asked of one worker, and the memory and time of a
    restart do not grow with workers × servers. A list is checked against the digest that names it:
    a worker can only tell what it holds itself.

    Args:
        slow_after: Seconds after which another worker is asked for a list.
    """

    def __init__(self, slow_after: float = _SLOW_AFTER) -> None:
        self._slow_after = slow_after
        self._known: Newest[bytes, Held] = Newest(_MAX_KEPT)
        self._asked: dict[bytes, asyncio.Event] = {}  # set when the answer is there, or none comes

    async def of_worker(self, hello: sync_pb2.Hello, ask: Callable[[], Awaitable[bytes]]) -> Held:
        """Return what a joining worker holds; do not modify the result.

        Args:
            hello: Its first message.
            ask: Asks it for its list, and returns the answer.

        Raises:
            MalformedMessage: The digest or the list is invalid.
        """
        digest = hello.held_digest
        if not digest:
            content = sync_pb2.Hello(held=hello.held).SerializeToString(deterministic=True)
            return self._keep(hashlib.sha256(content).digest(), hello)
        if len(digest) != _DIGEST_BYTES:
            raise MalformedMessage("A worker must name what it holds by a SHA-256.")
        while (known := self._known.get(digest)) is None:
            asked = self._asked.get(digest)
            if asked is None:
                return await self._ask(digest, ask)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._slow_after):
                    await asked.wait()
            if not asked.is_set():  # of all who have waited so long, only the first sees that
                return await self._ask(digest, ask)
        return known

    async def _ask(self, digest: bytes, ask: Callable[[], Awaitable[bytes]]) -> Held:
        slow = self._asked.get(digest)
        asked = self._asked[digest] = asyncio.Event()
        if slow is not None:
            slow.set()  # who waits for it waits for the new one instead
        try:
            content = await ask()
            if hashlib.sha256(content).digest() != digest:
                raise MalformedMessage("A worker holds something else than its hello names.")
            try:
                return self._keep(digest, sync_pb2.Hello.FromString(content))
            except DecodeError as error:
                raise MalformedMessage("A worker sent an unreadable list of variants.") from error
        finally:
            if self._asked.get(digest) is asked:
                del self._asked[digest]
            asked.set()

    def _keep(self, digest: bytes, hello: sync_pb2.Hello) -> Held:
        known = self._known.get(digest)
        if known is None:
            known = {key_from_proto(hashes.key): hashes_from_proto(hashes) for hashes in hello.held}
        self._known[digest] = known
        return known

"""The RPC that streams an artifact to the session whose call returned it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from leaseway.data_plane.edge.artifacts import ArtifactStore
from leaseway.v1 import execution_pb2
from leaseway.wire.fault import Fault
from leaseway.wire.reasons import Reason

__all__ = ["send_artifact"]

Response = execution_pb2.ReadArtifactResponse

_PATIENCE: Final = 60.0
"""Seconds that a caller may take to read a part; it can read on later from where it was."""


async def send_artifact(
    store: ArtifactStore,
    request: execution_pb2.ReadArtifactRequest,
    write: Callable[[Response], Awaitable[None]],
    patience: float = _PATIENCE,
) -> None:
    """Write what an artifact is, then its bytes.

    Args:
        store: Has it.
        request: What is asked for, and by whom.
        write: Sends a message once there is room for it.
        patience: Seconds that this may take.

    Raises:
        Fault: ARTIFACT_LOST; OVERLOADED: too many are being read, or the caller does not read;
            INVALID_REQUEST: the offset lies behind its end.

    """
    async with aclosing(_responses(store, request)) as responses:
        async for response in responses:
            try:
                async with asyncio.timeout(patience):
                    await write(response)
            except TimeoutError:
                raise Fault(
                    Reason.OVERLOADED,
                    f"The caller has read nothing of the artifact for {patience:g} s; read on from "
                    "the offset that it has come to.",
                ) from None


async def _responses(
    store: ArtifactStore, request: execution_pb2.ReadArtifactRequest
) -> AsyncGenerator[Response]:
    artifact = store.find(request.ref, request.tenant, request.session)
    if request.offset > artifact.byte_length:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"The offset {request.offset} lies behind the end of the artifact, which has "
            f"{artifact.byte_length} bytes.",
        )
    yield Response(mime_type=artifact.mime_type, byte_length=artifact.byte_length)
    parts = store.parts(artifact, request.offset, artifact.byte_length)
    async with aclosing(parts):
        async for part in parts:
            yield Response(data=part)

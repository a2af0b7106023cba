"""The RPC that streams an artifact to the session whose call returned it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from leaseway.data_plane.edge.artifacts import ArtifactStore
from leaseway.v1 import execution_pb2
from leaseway.wire.fault import Fault, Reason

__all__ = ["read_artifact"]

Response = execution_pb2.ReadArtifactResponse


async def read_artifact(
    store: ArtifactStore, request: execution_pb2.ReadArtifactRequest
) -> AsyncGenerator[Response]:
    """Yield what an artifact is, then its bytes.

    Raises:
        Fault: ARTIFACT_LOST, OVERLOADED; INVALID_REQUEST: the offset lies behind its end.

    """
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

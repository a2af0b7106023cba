"""Images and sounds that calls returned by reference, as a worker keeps them."""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from leaseway.v1 import execution_pb2
from leaseway.wire.artifact_refs import artifact_reference, incarnation_mark
from leaseway.wire.bounds import BATCH_SIZE
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.names import DEFAULT_TENANT

_NOISE_BITS: Final = 74


@dataclass(frozen=True)
class _Kept:
    owner: tuple[str, str]
    mime_type: str
    data: bytes


class FakeArtifacts:
    """What a fake worker keeps until it ends.

    Args:
        incarnation: The worker's run, which references name.
    """

    def __init__(self, incarnation: str) -> None:
        self._mark = incarnation_mark(incarnation)
        self._kept: dict[str, _Kept] = {}

    def replaced(self, result: dict[str, Any], call: execution_pb2.Call) -> dict[str, Any]:
        """Return a call's result with references in place of its media, which are kept."""

        def content(value: Any) -> Any:
            if isinstance(value, list):
                return [self._item(item, call) for item in value]
            return self._item(value, call)

        fresh = dict(result)
        if "content" in fresh:
            fresh["content"] = content(fresh["content"])
        if "messages" in fresh:  # of a prompt
            fresh["messages"] = [
                {**message, "content": content(message.get("content"))}
                for message in fresh["messages"]
            ]
        return fresh

    def _item(self, item: Any, call: execution_pb2.Call) -> Any:
        if not isinstance(item, dict) or item.get("type") not in ("image", "audio"):
            return item
        mime_type = str(item.get("mimeType", "application/octet-stream"))
        try:
            data = base64.b64decode(item["data"], validate=True)
        except (KeyError, TypeError, ValueError):
            return item  # stays as it is, as it would on a worker
        ref = artifact_reference(
            call.server_id,
            call.tool,
            mime_type,
            mark=self._mark,
            stored_at=time.time(),
            noise=secrets.randbits(_NOISE_BITS),
        )
        owner = call.tenant or DEFAULT_TENANT, call.session
        self._kept[ref] = _Kept(owner, mime_type, data)
        rest = {name: value for name, value in item.items() if name != "data"}
        return {**rest, "mimeType": mime_type, "byteLength": len(data), "artifact": ref}

    async def read(
        self, request: execution_pb2.ReadArtifactRequest
    ) -> AsyncIterator[execution_pb2.ReadArtifactResponse]:
        """Stream one artifact to the tenant and session that it belongs to.

        Raises:
            Fault: ARTIFACT_LOST: there is none for them.

        """
        kept = self._kept.get(request.ref)
        if kept is None or kept.owner != (request.tenant or DEFAULT_TENANT, request.session):
            raise Fault(
                Reason.ARTIFACT_LOST,
                f"There is no artifact {request.ref[:256]} for this tenant and session.",
            )
        first = execution_pb2.ReadArtifactResponse(
            mime_type=kept.mime_type, byte_length=len(kept.data)
        )
        yield first
        for start in range(request.offset, len(kept.data), BATCH_SIZE):
            yield execution_pb2.ReadArtifactResponse(data=kept.data[start : start + BATCH_SIZE])

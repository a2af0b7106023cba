"""Calls that return images, for the tests of artifacts."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.data_plane.conftest import Bench, rpc_fault

from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Fault

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))


def result(*contents: bytes, kind: str = "image", mime: str = "image/png") -> bytes:
    items = [
        {"type": kind, "mimeType": mime, "data": base64.b64encode(content).decode()}
        for content in contents
    ]
    return json.dumps({"content": items}).encode()


async def call(bench: Bench, payload: bytes, **fields: Any) -> Any:
    """Make a call, answer it, and return its result as JSON."""
    caller = bench.caller()
    call_id = await caller.begin("shots", **fields)
    await answer(bench, payload)
    await caller.result(call_id)
    return json.loads(caller.payloads[call_id])


async def answer(bench: Bench, payload: bytes) -> None:
    (await bench.wait_for_calls())[0].answer(payload)


async def kept(bench: Bench, content: bytes = PNG, **fields: Any) -> str:
    """Make a call that returns an image; return its reference."""
    fields.setdefault("session", "s1")
    said = await call(bench, result(content), **fields)
    return str(said["content"][0]["artifact"])


async def read(bench: Bench, ref: str, **fields: Any) -> list[execution_pb2.ReadArtifactResponse]:
    fields.setdefault("session", "s1")
    request = execution_pb2.ReadArtifactRequest(ref=ref, **fields)
    return [part async for part in bench.execution.ReadArtifact(request, timeout=60)]


async def refused(bench: Bench, ref: str, **fields: Any) -> Fault:
    return await rpc_fault(read(bench, ref, **fields))

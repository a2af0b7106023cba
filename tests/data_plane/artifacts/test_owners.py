"""Whose the artifacts of calls without a session are: their tenant's, by the reference alone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from tests.data_plane.artifact_calls import PNG, answer, kept, read, refused, result
from tests.data_plane.conftest import Bench, worker_bench

from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Reason


@pytest.fixture
async def shots() -> AsyncIterator[Bench]:
    async with worker_bench() as bench:
        await bench.hold("shots")
        yield bench


async def unary(bench: Bench, tenant: str = "") -> str:
    """Have a unary call return an image; return its reference."""
    request = execution_pb2.CallToolRequest(server_id="shots", tool="echo", tenant=tenant)
    request.arguments.update({"text": "hi"})
    calling = bench.execution.CallTool(request, timeout=60)
    await answer(bench, result(PNG))
    response = await calling
    return str(response.content[0].image.artifact)


async def test_its_tenant_reads_it_without_a_session_by_its_reference(shots: Bench) -> None:
    ref = await unary(shots, tenant="acme")
    parts = await read(shots, ref, tenant="acme", session="")
    assert b"".join(part.data for part in parts) == PNG


@pytest.mark.parametrize(
    ("tenant", "session"), [("other", ""), ("", ""), ("acme", "s1"), ("other", "s1")]
)
async def test_another_tenant_or_a_session_does_not(
    shots: Bench, tenant: str, session: str
) -> None:
    ref = await unary(shots, tenant="acme")
    fault = await refused(shots, ref, tenant=tenant, session=session)
    assert fault.reason is Reason.ARTIFACT_LOST


async def test_a_request_without_a_session_reads_no_artifact_of_a_session(shots: Bench) -> None:
    ref = await kept(shots, tenant="acme", session="s1")
    fault = await refused(shots, ref, tenant="acme", session="")
    assert fault.reason is Reason.ARTIFACT_LOST


async def test_a_reference_does_not_reveal_the_next_one(shots: Bench) -> None:
    refs = [await unary(shots) for _ in range(8)]
    ends = [re.sub(r".*Z-[0-9a-f]{8}-[0-9a-f]{4}-", "", ref) for ref in refs]
    # Each digit of the 74 random bits differs somewhere; version and variant stand still.
    columns = zip(*ends, strict=True)
    still = "".join(column[0] for column in columns if len(set(column)) == 1)
    assert re.fullmatch(r"8-[89ab]?-\.png", still), ends

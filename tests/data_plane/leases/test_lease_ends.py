"""What a worker reports of leases that ended: how each of them did."""

from __future__ import annotations

from typing import Any

from leaseway.v1 import leases_pb2

Bench = Any


async def acquire(bench: Bench, session: str, tenant: str = "") -> str:
    request = leases_pb2.AcquireLeaseRequest(server_id="db", session=session, tenant=tenant)
    return str((await bench.leases.AcquireLease(request)).lease.id)


async def ends(bench: Bench, lease_id: str) -> list[tuple[str, str]]:
    """Return (tenant, how) of the end that is reported of a lease."""
    report = await bench.plane.expect_report(lambda report: lease_id in report.leases_lost)
    assert list(report.leases_lost) == [end.lease_id for end in report.lease_ends]
    return [(end.tenant, end.how) for end in report.lease_ends if end.lease_id == lease_id]


async def test_each_end_of_a_lease_is_reported_by_its_word(bench: Bench) -> None:
    await bench.serve("db", shared=False)
    released = await acquire(bench, "s1", tenant="acme")
    release = leases_pb2.ReleaseLeaseRequest(lease_id=released, tenant="acme", session="s1")
    await bench.leases.ReleaseLease(release)
    assert await ends(bench, released) == [("acme", "released")]
    revoked = await acquire(bench, "s2")
    bench.plane.send(revoke={"lease_id": revoked, "reason": "an operator said so"})
    assert await ends(bench, revoked) == [("default", "revoked")]
    lost = await acquire(bench, "s3")
    bench.servers.opened[-1].crash("exit status 9")
    assert await ends(bench, lost) == [("default", "lost")]
    request = leases_pb2.AcquireLeaseRequest(server_id="db", session="s4")
    request.ttl.FromSeconds(1)
    expired = (await bench.leases.AcquireLease(request)).lease.id
    assert await ends(bench, expired) == [("default", "expired")]

"""`leaseway leases --watch`: each lease as it is gained, changes or ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from leaseway.cli.commands.operating.watch import watch
from leaseway.cli.options.common import Connection
from leaseway.cli.output.tables import json_line, plain
from leaseway.wire.names import DEFAULT_TENANT

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient, LeaseInfo

_SETTLES: Final = 0.2
"""Seconds between looks at a control plane that still asks its workers what they hold."""


class LeaseChange(NamedTuple):
    """What has become of a lease; one that ended is told as it last was.

    Attributes:
        event: `gained`, `changed`, or how it ended: `released`, `revoked`, `expired` or `lost`.
        lease: The lease.
    """

    event: str
    lease: LeaseInfo


def lease_changes(
    before: Iterable[LeaseInfo], after: Iterable[LeaseInfo], ends: Mapping[str, str]
) -> Iterator[LeaseChange]:
    """Tell two looks at the leases apart: what ended first, then the others, the oldest first.

    That a lease is older by the second look is no change. One that ended without anybody who says
    how (`ends`, by lease id) is lost.
    """
    old, new = ({lease.id: lease for lease in look} for look in (before, after))
    for lease_id in old.keys() - new.keys():
        yield LeaseChange(ends.get(lease_id, "lost"), old[lease_id])
    for lease in sorted(new.values(), key=lambda lease: (-lease.age, lease.id)):
        known = old.get(lease.id)
        if known is None:
            yield LeaseChange("gained", lease)
        elif replace(known, age=lease.age) != lease:
            yield LeaseChange("changed", lease)


def watch_leases(connection: Connection, *, as_json: bool) -> None:
    """Print the leases held, then every change, until the user interrupts.

    Raises:
        CliFailure: The control plane could not be reached at first, or refused.
    """
    ends: dict[str, str] = {}

    async def look(client: AsyncClient) -> Sequence[LeaseInfo]:
        leases = await _look(client)
        ends.clear()
        ends.update(await client.lease_ends())
        return leases

    def tell(before: Sequence[LeaseInfo], after: Sequence[LeaseInfo]) -> Iterator[str]:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for change in lease_changes(before, after, ends):
            yield _json_line(change, now) if as_json else _text_line(change, now)

    watch(connection, look, tell, "No leases are held.")


async def _look(client: AsyncClient) -> Sequence[LeaseInfo]:
    while True:
        leases = await client.leases()
        # A control plane that has just started does not know all yet: what it lacks is not lost.
        if not (await client.status()).settling:
            return leases
        await asyncio.sleep(_SETTLES)


def _json_line(change: LeaseChange, now: str) -> str:
    told = {"event": change.event, "seen": now, **plain(change.lease)}
    return json_line(told)


def _text_line(change: LeaseChange, now: str) -> str:
    lease = change.lease
    tenant = "" if lease.tenant == DEFAULT_TENANT else lease.tenant
    who = [f"{kind} {name}" for kind, name in (("tenant", tenant), ("agent", lease.agent)) if name]
    return (
        f"{now} {change.event} {lease.id} server {lease.server_id}, session {lease.session}, "
        f"worker {lease.worker}{''.join(f', {one}' for one in who)} (ttl {lease.ttl:.0f} s, "
        f"age {lease.age:.0f} s)"
    )

"""What a control plane makes of what a worker tells it."""

from __future__ import annotations

from leaseway.v1 import catalog_pb2, sync_pb2


def with_all_instances(
    report: sync_pb2.Report, known: dict[str, catalog_pb2.InstanceStatus]
) -> None:
    """Give a report all instances, of which it tells the changes; `known` are those before it."""
    if report.instances_version == 1:
        known.clear()
    for change in report.instance_changes:
        if change.HasField("status"):
            known[change.key] = change.status
        else:
            known.pop(change.key, None)
    report.instances.extend(known.values())
    report.instances_changed = True


def settled(listing: sync_pb2.SubjectListing) -> sync_pb2.SubjectToolset:
    """Return the answer to a listing that leaves its subject the toolset of all."""
    return sync_pb2.SubjectToolset(
        key=listing.key, launch_hash=listing.launch_hash, tenant=listing.tenant, user=listing.user
    )

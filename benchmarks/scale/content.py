"""What simulated workers hold: servers as a control plane with the same key has sent them."""

from __future__ import annotations

import hashlib
import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml
from google.protobuf import duration_pb2

from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.catalog.variants import build_good
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.toolsets import served_to_proto
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import InstancePolicy, VariantKey
from leaseway.v1 import catalog_pb2, leases_pb2, sync_pb2
from leaseway.wire.version import PROTOCOL_VERSION

__all__ = ["SEAL_KEY", "TOOLS", "HeldContent", "configuration", "server_id", "tool_definition"]

SEAL_KEY = "a key of the benchmarks alone"
TOOLS = 1
"""Tools of a server."""
_LEASED: Final = 20
"""Servers of which there are leases: as many as the smallest fleet has at least."""
_TENANTS: Final = 100
_LAUNCH_HASH: Final = "0123456789abcdef0123456789abcdef"
_LARGE: Final = 10
"""Every tenth tool has a schema this many times as long."""


_SHARED: Final[dict[str, Any]] = {
    "truely_stateless": True,
    "instances": InstancePolicy(start="lazy"),
}
"""The settings that make a server shared, as `configuration` does."""


def server_id(number: int) -> str:
    return f"s{number:05}"


def configuration(servers: int, *, shared: bool = False) -> str:
    """Return the configuration file of these servers."""
    entry: dict[str, object] = {"transport": "stdio", "command": "echo"}
    if shared:
        entry |= {"truely-stateless": True, "start": "lazy"}
    return yaml.dump(
        {"version": 1, "servers": {server_id(number): entry for number in range(servers)}},
        Dumper=_Plain,
    )


class _Plain(yaml.CSafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def tool_definition(tool: str, size: int) -> bytes:
    """Return the definition of a tool, whose schema has about `size` bytes."""
    properties = {
        f"argument_{number}": {"type": "string", "description": "What it is for, in a sentence."}
        for number in range(max(1, size // 90))
    }
    schema = {"type": "object", "properties": properties}
    reads = {"readOnlyHint": True}
    return json.dumps({"name": tool, "inputSchema": schema, "annotations": reads}).encode()


@dataclass(frozen=True)
class HeldContent:
    """The variants that every worker holds.

    Attributes:
        version: The registry version at which they were sent.
        held_list: A serialized hello that has their hashes only.
    """

    version: int
    held_list: bytes
    _variants: dict[str, bytes]

    @classmethod
    def build(cls, servers: int, size: int, *, shared: bool = False) -> HeldContent:
        """Build and sign these servers, whose tools have schemas of about `size` bytes.

        Every tenth has a schema of ten times as many.
        """
        seal = Seal(SEAL_KEY.encode())
        variants, hashes = {}, []
        for number in range(servers):
            name = server_id(number)
            more = _SHARED if shared else {}
            spec = server_spec(key=VariantKey(name), transport="stdio", command="echo", **more)
            length = size if number % _LARGE else size * _LARGE
            tools = tuple(
                ListedItem(tool, tool_definition(tool, length))
                for tool in (f"{name}_{index}" for index in range(TOOLS))
            )
            good, _ = build_good(spec, ServerListing(tools, "2025-11-25"))
            upsert = seal.sign(served_to_proto(good.without_clashes))
            variants[name] = upsert.SerializeToString()
            hashes.append(upsert.hashes)
        hello = sync_pb2.Hello(held=hashes)
        return cls(1, hello.SerializeToString(deterministic=True), variants)

    def hello(self, me: catalog_pb2.WorkerRef, leases: int) -> bytes:
        """Return the first message of a worker that has joined before and holds some leases."""
        hello = sync_pb2.Hello(
            protocol_version=PROTOCOL_VERSION,
            worker=me,
            capacity=512,
            leases=[_lease(me, number) for number in range(leases)],
            instances=[_instance(me, number) for number in range(leases)],
            highest_registry_version=self.version,
            lists_subjects=True,
        )
        # By name, so that earlier revisions can be measured, too.
        if "held_digest" in sync_pb2.Hello.DESCRIPTOR.fields_by_name:
            hello.held_digest = hashlib.sha256(self.held_list).digest()
        else:
            hello.MergeFromString(self.held_list)
        return sync_pb2.SyncRequest(hello=hello).SerializeToString()

    def save(self, path: Path) -> None:
        """Write it for the processes of simulated workers."""
        path.write_bytes(pickle.dumps(self))

    @classmethod
    def load(cls, path: Path) -> HeldContent:
        content: HeldContent = pickle.loads(path.read_bytes())
        return content

    def held(self, want: sync_pb2.Want) -> bytes:
        """Return the serialized answer to a request for content."""
        held = sync_pb2.Held()
        for key in want.keys:
            held.variants.append(sync_pb2.Upsert.FromString(self._variants[key.server_id]))
        return sync_pb2.SyncRequest(held=held).SerializeToString()


def _lease(me: catalog_pb2.WorkerRef, number: int) -> leases_pb2.Lease:
    return leases_pb2.Lease(
        id=f"{me.incarnation}-{number}",
        server_id=server_id(number % _LEASED),
        worker_id=me.id,
        tenant=f"tenant-{number % _TENANTS}",
        session=f"{me.id}-{number}",
        ttl=duration_pb2.Duration(seconds=3_600),
        age=duration_pb2.Duration(seconds=60),
        launch_hash=_LAUNCH_HASH,
        instance_id=f"{me.id}-i{number}",
    )


def _instance(me: catalog_pb2.WorkerRef, number: int) -> catalog_pb2.InstanceStatus:
    return catalog_pb2.InstanceStatus(
        worker_id=me.id,
        id=f"{me.id}-i{number}",
        state="ready",
        lease_id=f"{me.incarnation}-{number}",
        pid=1_000 + number,
        variant=catalog_pb2.VariantKey(server_id=server_id(number % _LEASED)),
        launch_hash=_LAUNCH_HASH,
        role="leased",
    )

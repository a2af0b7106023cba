"""What simulated workers hold: servers as a control plane with the same key has sent them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import yaml

from leaseway.control_plane.core.catalog.listing import ListedItem, ServerListing
from leaseway.control_plane.core.catalog.variants import build_good
from leaseway.control_plane.sync.seal import Seal
from leaseway.control_plane.sync.toolsets import served_to_proto
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.v1 import sync_pb2

__all__ = ["SEAL_KEY", "TOOLS", "HeldContent", "configuration", "server_id", "tool_definition"]

SEAL_KEY = "a key of the benchmarks alone"
TOOLS = 5
"""Tools of a server."""


def server_id(number: int) -> str:
    return f"s{number:05}"


def configuration(servers: int) -> str:
    """Return the configuration file of these servers."""
    entry = {"transport": "stdio", "command": "echo"}
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
    return json.dumps({"name": tool, "inputSchema": schema}).encode()


@dataclass(frozen=True)
class HeldContent:
    """The variants that every worker holds.

    Attributes:
        version: The registry version at which they were sent.
        held_hashes: A `SyncRequest` whose hello has their hashes only.
    """

    version: int
    held_hashes: bytes
    _variants: dict[str, bytes]

    @classmethod
    def build(cls, servers: int, size: int) -> HeldContent:
        """Build and sign these servers, whose tools have schemas of about `size` bytes."""
        seal = Seal(SEAL_KEY.encode())
        variants, hashes = {}, []
        for number in range(servers):
            name = server_id(number)
            spec = server_spec(key=VariantKey(name), transport="stdio", command="echo")
            tools = tuple(
                ListedItem(tool, tool_definition(tool, size))
                for tool in (f"{name}_{index}" for index in range(TOOLS))
            )
            good, _ = build_good(spec, ServerListing(tools, "2025-11-25"))
            upsert = seal.sign(served_to_proto(good.without_clashes))
            variants[name] = upsert.SerializeToString()
            hashes.append(upsert.hashes)
        hello = sync_pb2.SyncRequest(hello=sync_pb2.Hello(held=hashes))
        return cls(1, hello.SerializeToString(), variants)

    def held(self, want: sync_pb2.Want) -> bytes:
        """Return the serialized answer to a request for content."""
        held = sync_pb2.Held()
        for key in want.keys:
            held.variants.append(sync_pb2.Upsert.FromString(self._variants[key.server_id]))
        return sync_pb2.SyncRequest(held=held).SerializeToString()

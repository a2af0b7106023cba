"""The tools in which the leases of a session differ from those that the tenant sees. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from leaseway.sdk.catalog.tools import Tool


@dataclass(frozen=True)
class LeaseTools:
    """The tools in which one lease differs, as its instance lists them now.

    Attributes:
        server_id: The leased server.
        digest: Identifies the difference.
        tools: The tools that it adds, or defines otherwise.
        absent: The original names of tools that it does not list.
    """

    server_id: str
    digest: str
    tools: tuple[Tool, ...]
    absent: frozenset[str]


def with_lease_tools(tools: Iterable[Tool], own: Collection[LeaseTools]) -> list[Tool]:
    """Return what a session sees: the tools of all, with those in which its leases differ.

    A name of all keeps its meaning; of two leases, the server with the smaller id gets a name.

    Args:
        tools: The tools of all, ordered by name.
        own: The tools in which leases differ.
    """
    hidden = {
        (lease.server_id, name)
        for lease in own
        for name in (*lease.absent, *(tool.original_name for tool in lease.tools))
    }
    listed = {
        tool.name: tool for tool in tools if (tool.server_id, tool.original_name) not in hidden
    }
    for lease in sorted(own, key=_server_of):
        for tool in lease.tools:
            listed.setdefault(tool.name, tool)
    return [tool for _, tool in sorted(listed.items())]


def _server_of(lease: LeaseTools) -> str:
    return lease.server_id

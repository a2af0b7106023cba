"""The values of `transport:`: built-in ones, kinds of packages, and registered transports.

A package brings a kind of server with keys of its own by an entry point of the group
`leaseway.kinds` (see `packages`). Where an MCP server needs no more than another transport, a
package registers that by an entry point of the group `leaseway.transports`. The control plane only
reads the names of those in its own environment; a worker loads a transport when it needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final

from leaseway.spec.kinds.packages import KIND_GROUP
from leaseway.spec.kinds.table import OF_PACKAGES, TRANSPORTS

TRANSPORT_GROUP: Final = "leaseway.transports"


@functools.cache
def registered_transports() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points of each name that is not built in, as of the first call.

    More than one entry for a name is an error that its loader reports.
    """
    found: dict[str, dict[EntryPoint, None]] = {}
    for entry in entry_points(group=TRANSPORT_GROUP):
        if entry.name not in TRANSPORTS and entry.name not in OF_PACKAGES.parts:
            found.setdefault(entry.name, {})[entry] = None  # a path listed twice yields it twice
    return MappingProxyType({name: tuple(entries) for name, entries in sorted(found.items())})


def is_registered(name: str) -> bool:
    """Return whether a package in this environment registers a transport."""
    return name not in TRANSPORTS and name in registered_transports()


def is_known(name: object) -> bool:
    """Return whether a value of `transport:` is valid here."""
    if not isinstance(name, str):
        return False
    return name in TRANSPORTS or name in OF_PACKAGES.parts or is_registered(name)


def known_transports() -> tuple[str, ...]:
    """Return every valid value of `transport:` here."""
    return (*TRANSPORTS, *OF_PACKAGES.parts, *registered_transports())


def unavailable(name: str) -> str:
    """Return why a transport is unavailable here and what to do, to follow "wants"."""
    if name in OF_PACKAGES.faults:
        return f"transport {name[:64]}, which this worker cannot run: {OF_PACKAGES.faults[name]}"
    names = ", ".join(sorted(known_transports()))
    return (
        f"transport {name[:64]}, which this worker cannot run; use one of {names}, or install the "
        f"package that brings it (entry points {KIND_GROUP} or {TRANSPORT_GROUP}) where the worker "
        "runs, and restart the worker."
    )

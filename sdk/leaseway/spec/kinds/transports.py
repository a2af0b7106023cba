"""Built-in transports and those that other packages register.

A package registers a transport by an entry point of the group `leaseway.transports`. The control
plane only reads the names in its own environment; a worker loads a transport when it needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final

from leaseway.spec.kinds.table import TRANSPORTS

TRANSPORT_GROUP: Final = "leaseway.transports"


@functools.cache
def registered_transports() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points of each name that is not built in, as of the first call.

    More than one entry for a name is an error that its loader reports.
    """
    found: dict[str, dict[EntryPoint, None]] = {}
    for entry in entry_points(group=TRANSPORT_GROUP):
        if entry.name not in TRANSPORTS:
            found.setdefault(entry.name, {})[entry] = None  # a path listed twice yields it twice
    return MappingProxyType({name: tuple(entries) for name, entries in sorted(found.items())})


def is_registered(name: str) -> bool:
    """Return whether a package in this environment registers a transport."""
    return name not in TRANSPORTS and name in registered_transports()


def is_known(name: object) -> bool:
    """Return whether a value of `transport:` is valid here."""
    return isinstance(name, str) and (name in TRANSPORTS or is_registered(name))


def known_transports() -> tuple[str, ...]:
    """Return every valid value of `transport:` here."""
    return (*TRANSPORTS, *registered_transports())


def unavailable(name: str) -> str:
    """Return why a transport is unavailable here and what to do, to follow "wants"."""
    names = ", ".join(sorted({*TRANSPORTS, *registered_transports()}))
    return (
        f"transport {name[:64]}, which this worker cannot run; use one of {names}, or install the "
        f"package that registers it (entry points {TRANSPORT_GROUP}) where the worker runs, and "
        "restart the worker."
    )

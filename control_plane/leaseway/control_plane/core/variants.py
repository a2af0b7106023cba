"""What one variant of a server is: its recorded tools, its last good, what is served of it.

A *listing* is what the server said it has; the probe's is the contract. A *good* is a spec that
listed once, with the names that its rules give. A *served* is a good with the clashes between
servers settled: what goes to workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from leaseway.control_plane.core.exposure import expose
from leaseway.control_plane.core.problems import Problem
from leaseway.wire.spec import ServerSpec, VariantKey

__all__ = [
    "Exposed",
    "Good",
    "Hashes",
    "Listing",
    "RecordedTool",
    "Served",
    "adopt",
    "make_good",
    "relist",
    "renew",
    "settle",
]


@dataclass(frozen=True)
class RecordedTool:
    """One tool as its server listed it.

    Attributes:
        name: The server's name for it.
        definition: The whole definition, a JSON object as UTF-8.
    """

    name: str
    definition: bytes


@dataclass(frozen=True)
class Listing:
    """Everything that a server listed, in its order, and the protocol it was asked in."""

    tools: tuple[RecordedTool, ...] = ()
    protocol_version: str = ""

    @cached_property
    def digest(self) -> str:
        """A hash of the content."""
        state = hashlib.sha256(self.protocol_version.encode())
        for tool in self.tools:
            state.update(len(tool.definition).to_bytes(8, "big"))
            state.update(tool.definition)
        return state.hexdigest()

    @cached_property
    def by_name(self) -> dict[str, RecordedTool]:
        """The tools by the server's names; the first of two equal ones."""
        return {tool.name: tool for tool in reversed(self.tools)}


@dataclass(frozen=True)
class Hashes:
    """Which content of a variant: compared for equality only (DESIGN §8)."""

    launch: str
    exposure: str
    toolset: str


@dataclass(frozen=True)
class Exposed:
    """A tool that the rules let through; skipped where a smaller server id has its name."""

    original: str
    name: str
    skipped: bool = False


@dataclass(frozen=True)
class Good:
    """A variant that has listed once, and what its rules make of the listing.

    The hashes are kept beside the spec because a spec that came back from a worker lacks the
    filters and transforms that went into them.

    Attributes:
        exposed: (original, exposed name) of what the rules let through, before clashes.
        rules_known: Whether `spec` holds the rules; false for one that came from a worker.
    """

    spec: ServerSpec
    launch_hash: str
    exposure_hash: str
    listing: Listing
    exposed: tuple[tuple[str, str], ...]
    rules_known: bool = True


@dataclass(frozen=True)
class Served:
    """What workers get of a variant."""

    spec: ServerSpec
    hashes: Hashes
    listing: Listing
    exposed: tuple[Exposed, ...]

    @property
    def key(self) -> VariantKey:
        """The variant."""
        return self.spec.key

    @cached_property
    def callable_tools(self) -> tuple[Exposed, ...]:
        """The tools that exist for callers."""
        return tuple(tool for tool in self.exposed if not tool.skipped)


def make_good(spec: ServerSpec, listing: Listing) -> tuple[Good, tuple[Problem, ...]]:
    """Apply a spec's rules to a listing."""
    exposure = expose(spec, [tool.name for tool in listing.tools])
    good = Good(spec, spec.launch_hash, spec.exposure_hash, listing, exposure.exposed)
    return good, exposure.problems


def adopt(spec: ServerSpec, hashes: Hashes, listing: Listing, exposed: Iterable[Exposed]) -> Good:
    """Make a good of what a worker holds, without the rules that it was made by."""
    names = tuple((tool.original, tool.name) for tool in exposed)
    return Good(spec, hashes.launch, hashes.exposure, listing, names, rules_known=False)


def settle(good: Good, skipped: frozenset[tuple[str, str]]) -> Served:
    """Make what is served of a good, once it is known which of its names others have."""
    server_id = good.spec.key.server_id
    exposed = tuple(
        Exposed(original, name, (server_id, original) in skipped) for original, name in good.exposed
    )
    state = hashlib.sha256(good.listing.digest.encode())
    state.update(repr([(tool.original, tool.name, tool.skipped) for tool in exposed]).encode())
    hashes = Hashes(good.launch_hash, good.exposure_hash, state.hexdigest()[:32])
    return Served(good.spec, hashes, good.listing, exposed)


def renew(good: Good, spec: ServerSpec) -> tuple[Good, tuple[Problem, ...]]:
    """Give a good the exposure rules of a newer spec with the same launch hash."""
    return make_good(spec, good.listing)


def relist(good: Good, listing: Listing) -> tuple[Good, tuple[Problem, ...]]:
    """Give a good a newer listing of the same generation.

    Where the rules are not known (the configuration could not be read since the control plane
    started), only tools that were exposed before stay so: a filtered one must not slip through.
    """
    if good.rules_known:
        return make_good(good.spec, listing)
    still = tuple(pair for pair in good.exposed if pair[0] in listing.by_name)
    return replace(good, listing=listing, exposed=still), ()

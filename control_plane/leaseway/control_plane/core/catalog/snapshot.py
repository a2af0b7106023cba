"""All that servers offer at one registry version, and what a tenant sees of it (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, TypeVar
from weakref import ref

from leaseway.control_plane.core.catalog.admin_toolset import add_admin_toolset
from leaseway.control_plane.core.catalog.exposure import resolve_clashes
from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS, NamedKind
from leaseway.control_plane.core.catalog.listing import Recorded
from leaseway.control_plane.core.catalog.tenant_hiding import common_key, hidden_variant
from leaseway.control_plane.core.catalog.variants import (
    ExposedName,
    Hashes,
    LastKnownGood,
    Served,
    granted_to,
    serve,
)
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.model import VariantKey

T = TypeVar("T")
_MOST_VIEWS: Final = 1_000


@dataclass(frozen=True)
class NamedTarget:
    """Where one exposed name of a tool or a prompt leads."""

    served: Served
    item: ExposedName
    kind: NamedKind


@dataclass(frozen=True)
class ResourceTarget:
    """Whose a URI is.

    Attributes:
        served: The server that offers it.
        uri: The URI, or a template's own text.
        recorded: How the server listed it; None where it only stands for it.
        is_template: Whether it is a template's own text.
    """

    served: Served
    uri: str
    recorded: Recorded | None = None
    is_template: bool = False


@dataclass(frozen=True)
class View:
    """What one tenant sees of a snapshot: for each server its own variant or the common one.

    A server that is hidden from the tenant is not there; Leaseway's own toolset is, where the
    tenant has a use for it.
    """

    servers: Mapping[str, Served]

    @cached_property
    def toolsets(self) -> Mapping[str, str]:
        """What is in force of each server, as a hash: all that watchers keep of a view."""
        return {server_id: served.hashes.toolset for server_id, served in self.servers.items()}

    @cached_property
    def tools(self) -> Mapping[str, NamedTarget]:
        """Callable tools by exposed name, in the order of names."""
        return self._named(TOOLS)

    @cached_property
    def prompts(self) -> Mapping[str, NamedTarget]:
        return self._named(PROMPTS)

    @cached_property
    def resources(self) -> Mapping[tuple[str, str], ResourceTarget]:
        """Listed resources by server id and URI, in that order."""
        return {
            (server_id, one.name): ResourceTarget(served, one.name, one)
            for server_id, served in sorted(self.servers.items())
            for one in served.readable.resources
        }

    @cached_property
    def templates(self) -> Mapping[tuple[str, str], ResourceTarget]:
        """Listed templates of resources, likewise."""
        return {
            (server_id, one.name): ResourceTarget(served, one.name, one, is_template=True)
            for server_id, served in sorted(self.servers.items())
            for one in served.readable.templates
        }

    @cached_property
    def by_uri(self) -> Mapping[str, ResourceTarget]:
        """Listed resources and templates by URI; of several servers' the smallest id's."""
        listed = (*self.resources.values(), *self.templates.values())
        return {target.uri: target for target in reversed(listed)}

    def named(self, kind: NamedKind) -> Mapping[str, NamedTarget]:
        """Return what of one kind is callable, by exposed name."""
        return self.tools if kind is TOOLS else self.prompts

    def qualified(self, server_id: str, original: str, kind: NamedKind) -> NamedTarget | None:
        """Return the tool or prompt with an original name on one server, if its filter passes it.

        One whose exposed name is another server's is called by this name alone.
        """
        served = self.servers.get(server_id)
        if served is None:
            return None
        for item in served.names(kind):
            if item.original == original:
                return NamedTarget(served, item, kind)
        return None

    def _named(self, kind: NamedKind) -> Mapping[str, NamedTarget]:
        found = {
            item.name: NamedTarget(served, item, kind)
            for served in self.servers.values()
            for item in served.callable(kind)
        }
        return dict(sorted(found.items()))


@dataclass(frozen=True)
class Snapshot:
    """What is served at one registry version."""

    version: int
    served: Mapping[VariantKey, Served] = field(default_factory=dict)
    _views: dict[tuple[str, str], View] = field(default_factory=dict, compare=False, repr=False)
    _since: dict[int, tuple[ref[Snapshot], Delta]] = field(
        default_factory=dict, compare=False, repr=False
    )
    _within: dict[WorkerScope, Snapshot] = field(default_factory=dict, compare=False, repr=False)

    def within(self, scope: WorkerScope) -> Snapshot:
        """Return what of it a worker may be given; made once for all workers of a kind."""
        if not self._asked_labels and not scope.servers:
            return self
        kind = scope.restricted_to(self._asked_labels)
        part = self._within.get(kind)
        if part is None:
            served = {key: one for key, one in self.served.items() if kind.accepts(one.spec)}
            part = self if len(served) == len(self.served) else Snapshot(self.version, served)
            self._within[kind] = part
        return part

    @cached_property
    def _asked_labels(self) -> frozenset[tuple[str, str]]:
        """Every label that some server asks of its workers, with its value."""
        return frozenset(
            pair for one in self.served.values() for pair in one.spec.worker_labels.items()
        )

    def view(self, tenant: str, agent: str = "") -> View:
        """Return what a tenant sees, or an agent of it that has grants of its own."""
        name = tenant if tenant in self.tenants else ""
        who = (tenant, agent) if self.is_restricted else (name, "")
        view = self._views.get(who)
        if view is None:
            seen = _seen_by(self.served, name)
            granted = {
                key.server_id: one
                for key, served in seen.items()
                if not served.spec.hidden and (one := granted_to(served, *who)) is not None
            }
            if self.is_restricted:
                granted = _settled_among(granted)
            if len(self._views) >= _MOST_VIEWS:  # names are callers' to choose where nobody checks
                self._views.clear()
            view = self._views[who] = View(add_admin_toolset(granted))
        return view

    @cached_property
    def is_restricted(self) -> bool:
        """Whether it takes a grant to see something."""
        return any(served.spec.policy.grants is not None for served in self.served.values())

    @cached_property
    def tenants(self) -> frozenset[str]:
        return frozenset(key.tenant for key in self.served if key.tenant)

    @cached_property
    def hashes(self) -> Mapping[VariantKey, Hashes]:
        return {key: served.hashes for key, served in self.served.items()}

    @cached_property
    def whole(self) -> Delta:
        return compute_delta(self, {}, removals=True)

    def since(self, older: Snapshot) -> Delta:
        """Return what one that has all of an older snapshot lacks; computed once for all such."""
        kept = self._since.get(older.version)
        if kept is None or kept[0]() is not older:
            delta = compute_delta(self, older.hashes, removals=True)
            # Weak: held for good, each snapshot would keep all that there ever were.
            kept = self._since[older.version] = (ref(older), delta)
        return kept[1]


@dataclass(frozen=True)
class Delta:
    """What a worker lacks of a snapshot."""

    upserts: tuple[Served, ...]
    removals: tuple[VariantKey, ...]


def build_snapshot(
    version: int, works: Mapping[VariantKey, LastKnownGood], withheld: Collection[VariantKey] = ()
) -> tuple[Snapshot, tuple[Problem, ...]]:
    """Settle the clashes between all that works and return what is served, with a problem for each.

    Args:
        version: The version of what is served.
        works: The last_known_good.
        withheld: Variants of tenants that have no good: their servers are hidden from them.
    """
    last_known_good = {**works, **{key: hidden_variant(key) for key in withheld}}
    served: dict[VariantKey, Served] = {}
    problems: list[Problem] = []
    for tenant in sorted({key.tenant for key in last_known_good} | {""}):
        seen = _seen_by(last_known_good, tenant)
        skipped: list[frozenset[tuple[str, str]]] = []
        for kind in (TOOLS, PROMPTS):
            names = {key.server_id: good.names(kind) for key, good in seen.items()}
            clashes = resolve_clashes({each: some for each, some in names.items() if some}, kind)
            problems.extend(clashes.problems)
            skipped.append(clashes.skipped)
        for key, good in seen.items():
            if key.tenant == tenant:
                served[key] = serve(good, *skipped)
    return Snapshot(version, dict(sorted(served.items()))), tuple(problems)


def compute_delta(
    snapshot: Snapshot, known: Mapping[VariantKey, Hashes], *, removals: bool
) -> Delta:
    """Return what is to be sent to one that has `known`, and whether it may be told to remove."""
    return Delta(
        upserts=tuple(
            served for key, served in snapshot.served.items() if known.get(key) != served.hashes
        ),
        removals=tuple(sorted(key for key in known if key not in snapshot.served))
        if removals
        else (),
    )


def acknowledged(committed: Snapshot, before: Snapshot, held: Callable[[Served], bool]) -> Snapshot:
    """Return what of a commit may be listed: what some worker holds (DESIGN §3.5).

    A variant whose new content nobody has taken is listed as it was before, while it is held; a
    tenant whose own nobody holds gets nothing in its place.
    """
    listed: dict[VariantKey, Served] = {}
    for key, served in committed.served.items():  # the common variants before those of tenants
        for candidate in (served, before.served.get(key)):
            if candidate is not None and held(candidate):
                listed[key] = candidate
                break
        else:
            if common_key(key) in listed:
                listed[key] = hidden_variant(key).without_clashes
    found = Snapshot(committed.version, listed)
    return before if found == before else found  # one that is equal has its views already


def _settled_among(granted: Mapping[str, Served]) -> dict[str, Served]:
    """Settle clashes among what one caller sees: a server that it does not see takes no name."""
    settled = dict(granted)
    for kind in (TOOLS, PROMPTS):
        if not any(each.skipped for one in settled.values() for each in one.names(kind)):
            continue
        names = {
            server_id: [(each.original, each.name) for each in one.names(kind)]
            for server_id, one in settled.items()
            if one.names(kind)
        }
        skipped = resolve_clashes(names, kind).skipped
        for server_id, one in settled.items():
            own = tuple(
                ExposedName(each.original, each.name, (server_id, each.original) in skipped)
                for each in one.names(kind)
            )
            if own != one.names(kind):
                settled[server_id] = (
                    replace(one, exposed=own) if kind is TOOLS else replace(one, prompts=own)
                )
    return settled


def _seen_by(variants: Mapping[VariantKey, T], tenant: str) -> dict[VariantKey, T]:
    chosen = {
        key.server_id: key for key in sorted(variants) if key.tenant in ("", tenant)
    }  # a tenant sorts after the common "" and so takes its place
    return {key: variants[key] for _, key in sorted(chosen.items())}

"""Snapshots of the registry: all served variants at one version, and tenants' views.

See design.md#names-and-versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Final, TypeVar

from leaseway.control_plane.core.catalog.admin_toolset import add_admin_toolset
from leaseway.control_plane.core.catalog.exposure import resolve_clashes
from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS, NamedKind
from leaseway.control_plane.core.catalog.listing import ListedItem
from leaseway.control_plane.core.catalog.tenant_hiding import common_key, hidden_variant
from leaseway.control_plane.core.catalog.variants import (
    ExposedName,
    Hashes,
    Served,
    granted_to,
)
from leaseway.control_plane.core.catalog.worker_scope import WorkerScope
from leaseway.spec.model import VariantKey
from leaseway.wire.messages.mcp import Introduction
from leaseway.wire.sharing.newest import Newest

T = TypeVar("T")
_MAX_VIEWS: Final = 1_000
_MAX_DELTAS: Final = 16
"""Deltas of a snapshot that are kept: few workers differ in what they have."""


@dataclass(frozen=True)
class NamedTarget:
    """The tool or prompt that a name resolves to."""

    served: Served
    item: ExposedName
    kind: NamedKind


@dataclass(frozen=True)
class ResourceTarget:
    """The resource or template that a URI resolves to.

    Attributes:
        served: Its server.
        uri: The URI, or a template's text.
        recorded: How the server listed it; None if only a template or a filter matches the URI.
        is_template: Whether `uri` is a template's text.
    """

    served: Served
    uri: str
    recorded: ListedItem | None = None
    is_template: bool = False


@dataclass(frozen=True)
class View:
    """What one tenant sees of a snapshot: its own variant of each server, or the common one.

    It excludes hidden servers, and includes the built-in toolset if the tenant can use it.
    """

    servers: Mapping[str, Served]

    @cached_property
    def of_people(self) -> tuple[str, ...]:
        """The servers that may list something else for each tenant or user, sorted."""
        return tuple(
            sorted(
                server_id
                for server_id, served in self.servers.items()
                if served.spec.part.auth.is_of_people
            )
        )

    @cached_property
    def with_task_only_tools(self) -> tuple[Served, ...]:
        """The servers with tools that can only be called as MCP tasks."""
        return tuple(served for served in self.servers.values() if served.listing.task_only)

    @cached_property
    def acts_for_users(self) -> bool:
        """Whether some server may list something else for each user."""
        return any(served.spec.part.auth.acts_for_users for served in self.servers.values())

    @cached_property
    def tools(self) -> Mapping[str, NamedTarget]:
        """Callable tools by exposed name, sorted."""
        return self._named(TOOLS)

    @cached_property
    def prompts(self) -> Mapping[str, NamedTarget]:
        return self._named(PROMPTS)

    @cached_property
    def resources(self) -> Mapping[tuple[str, str], ResourceTarget]:
        """Listed resources by server id and URI, sorted by server id."""
        return {
            (server_id, resource.name): ResourceTarget(served, resource.name, resource)
            for server_id, served in sorted(self.servers.items())
            for resource in served.readable.resources
        }

    @cached_property
    def templates(self) -> Mapping[tuple[str, str], ResourceTarget]:
        """Listed resource templates, likewise."""
        return {
            (server_id, template.name): ResourceTarget(
                served, template.name, template, is_template=True
            )
            for server_id, served in sorted(self.servers.items())
            for template in served.readable.templates
        }

    @cached_property
    def introductions(self) -> Mapping[str, Introduction]:
        """What servers say about themselves, by id and sorted, as far as callers see them."""
        return {
            server_id: served.introduction
            for server_id, served in sorted(self.servers.items())
            if served.introduction
        }

    @cached_property
    def by_uri(self) -> Mapping[str, ResourceTarget]:
        """Listed resources and templates by URI; the smallest server id has priority."""
        listed = (*self.resources.values(), *self.templates.values())
        return {target.uri: target for target in reversed(listed)}

    def named(self, kind: NamedKind) -> Mapping[str, NamedTarget]:
        """Return the callable tools or prompts by exposed name."""
        return self.tools if kind is TOOLS else self.prompts

    def qualified(self, server_id: str, original: str, kind: NamedKind) -> NamedTarget | None:
        """Return the tool or prompt with an original name on a server, if it passes the filter.

        Tools and prompts whose exposed name belongs to another server can only be found here.
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
    """All served variants at one registry version."""

    version: int
    served: Mapping[VariantKey, Served] = field(default_factory=dict)
    _views: dict[tuple[str, str], View] = field(default_factory=dict, compare=False, repr=False)
    # By the identity of what is known, which the entry keeps alive.
    _since: Newest[int, tuple[Mapping[VariantKey, Hashes], Delta]] = field(
        default_factory=partial(Newest, _MAX_DELTAS), compare=False, repr=False
    )
    _changed: dict[int, tuple[Mapping[VariantKey, Hashes], frozenset[str]]] = field(
        default_factory=dict, compare=False, repr=False
    )
    # None stands for this snapshot itself, which would not be freed without a full collection.
    _within: dict[WorkerScope, Snapshot | None] = field(
        default_factory=dict, compare=False, repr=False
    )

    def within(self, scope: WorkerScope) -> Snapshot:
        """Return the part that a worker accepts; built once for workers with equal scopes."""
        if not self._asked_labels and not scope.servers:
            return self
        kind = scope.restricted_to(self._asked_labels)
        if kind not in self._within:
            served = {
                key: variant for key, variant in self.served.items() if kind.accepts(variant.spec)
            }
            is_whole = len(served) == len(self.served)
            self._within[kind] = None if is_whole else Snapshot(self.version, served)
        return self._within[kind] or self

    @cached_property
    def _asked_labels(self) -> frozenset[tuple[str, str]]:
        """All labels that servers require of workers, with their values."""
        return frozenset(
            pair for served in self.served.values() for pair in served.spec.worker_labels.items()
        )

    def view(self, tenant: str, agent: str = "") -> View:
        """Return what a tenant sees, or one of its agents with separate grants."""
        name = tenant if tenant in self.tenants else ""
        who = (tenant, agent) if self.is_restricted else (name, "")
        view = self._views.get(who)
        if view is None:
            granted = {
                server_id: one
                for server_id, served in self._visible_to(name).items()
                if not served.spec.hidden and (one := granted_to(served, *who)) is not None
            }
            moves_names = self._moves_names(name)
            if self.is_restricted or moves_names:
                granted = resolve_clashes_among(granted, always=moves_names)
            if len(self._views) >= _MAX_VIEWS:  # callers may choose any names without credentials
                self._views.clear()
            view = self._views[who] = View(add_admin_toolset(granted))
        return view

    def _visible_to(self, tenant: str) -> Mapping[str, Served]:
        """Return the variants that count for a tenant, its own or the common ones, by server id."""
        common, own = self._variants.get("", {}), self._variants.get(tenant, {})
        seen = {**common, **own}
        return seen if own.keys() <= common.keys() else dict(sorted(seen.items()))

    @cached_property
    def _variants(self) -> Mapping[str, Mapping[str, Served]]:
        return _by_tenant(self.served)

    def _moves_names(self, tenant: str) -> bool:
        """Return whether a tenant's own variants take names from other servers, or leave some."""
        common, own = self._variants.get("", {}), self._variants.get(tenant, {}) if tenant else {}
        return any(
            not own.keys() >= wanting.get(item.name, own.keys())
            for kind, wanting in (self._wanting if own else {}).items()
            for server_id, variant in own.items()
            for either in (variant, common.get(server_id, variant))
            for item in either.names(kind)
        )

    @cached_property
    def _wanting(self) -> Mapping[NamedKind, Mapping[str, Set[str]]]:
        """The servers whose common variants expose each name, or lose it to another one."""
        found: dict[NamedKind, dict[str, set[str]]] = {TOOLS: {}, PROMPTS: {}}
        for kind, wanting in found.items():
            for server_id, variant in self._variants.get("", {}).items():
                for item in variant.names(kind):
                    wanting.setdefault(item.name, set()).add(server_id)
        return found

    @cached_property
    def is_restricted(self) -> bool:
        """Whether some server requires a grant."""
        return any(served.spec.policy.grants is not None for served in self.served.values())

    @cached_property
    def tenants(self) -> frozenset[str]:
        return frozenset(key.tenant for key in self.served if key.tenant)

    @cached_property
    def hidden(self) -> frozenset[VariantKey]:
        """The variants that hide a server from a tenant."""
        return frozenset(key for key, served in self.served.items() if served.spec.hidden)

    @cached_property
    def hashes(self) -> Mapping[VariantKey, Hashes]:
        return {key: served.hashes for key, served in self.served.items()}

    def servers_changed_since(self, older: Snapshot) -> frozenset[str]:
        """Return the servers with a variant whose content differs; computed once for a snapshot."""
        kept = self._changed.get(older.version)
        if kept is None or kept[0] is not older.hashes:
            before, after = older.hashes, self.hashes
            changed = frozenset(
                key.server_id
                for key in before.keys() | after.keys()
                if before.get(key) != after.get(key)
            )
            kept = self._changed[older.version] = (older.hashes, changed)
        return kept[1]

    @cached_property
    def whole(self) -> Delta:
        """The delta for a worker that has nothing."""
        return compute_delta(self, {})

    def since(self, known: Mapping[VariantKey, Hashes]) -> Delta:
        """Return the delta for a worker that has `known`; computed once for a shared mapping."""
        if not known:
            return self.whole
        kept = self._since.get(id(known))
        if kept is None:
            kept = self._since[id(known)] = (known, compute_delta(self, known))
        return kept[1]


@dataclass(frozen=True)
class Delta:
    """The changes that bring a worker to a snapshot."""

    upserts: tuple[Served, ...]
    removals: tuple[VariantKey, ...]

    @cached_property
    def servers(self) -> frozenset[str]:
        """The servers that it changes; built once for all workers that get it."""
        keys = (*(served.key for served in self.upserts), *self.removals)
        return frozenset(key.server_id for key in keys)


def compute_delta(snapshot: Snapshot, known: Mapping[VariantKey, Hashes]) -> Delta:
    """Return the delta for a worker that has `known`."""
    upserts = (
        variant for key, variant in snapshot.served.items() if known.get(key) != variant.hashes
    )
    return Delta(tuple(upserts), tuple(sorted(key for key in known if key not in snapshot.served)))


def acknowledged(committed: Snapshot, before: Snapshot, held: Callable[[Served], bool]) -> Snapshot:
    """Return the part of a commit that callers may see: what some worker holds.

    A variant whose new content no worker holds keeps its previous content while that is held. A
    tenant variant that no worker holds hides the server from the tenant.

    See design.md#reload.5.
    """
    listed: dict[VariantKey, Served] = {}
    for key, served in committed.served.items():  # common variants come before tenants' own
        for candidate in (served, before.served.get(key)):
            if candidate is not None and held(candidate):
                listed[key] = candidate
                break
        else:
            if common_key(key) in listed:
                listed[key] = hidden_variant(key).without_clashes
    found = Snapshot(committed.version, listed)
    return before if found == before else found  # an equal one has cached its views


def resolve_clashes_among(
    granted: Mapping[str, Served], *, always: bool = False
) -> dict[str, Served]:
    """Resolve name clashes again among the servers that one caller sees.

    Args:
        granted: These servers.
        always: Whether there may be clashes that all servers together do not have.
    """
    settled = dict(granted)
    for kind in (TOOLS, PROMPTS):
        if not always and not any(
            name.skipped for variant in settled.values() for name in variant.names(kind)
        ):
            continue
        names = {
            server_id: [(name.original, name.name) for name in variant.names(kind)]
            for server_id, variant in settled.items()
            if variant.names(kind)
        }
        skipped = resolve_clashes(names, kind).skipped
        for server_id, variant in settled.items():
            own = tuple(
                ExposedName(name.original, name.name, (server_id, name.original) in skipped)
                for name in variant.names(kind)
            )
            if own != variant.names(kind):
                settled[server_id] = (
                    replace(variant, exposed=own)
                    if kind is TOOLS
                    else replace(variant, prompts=own)
                )
    return settled


def _by_tenant(variants: Mapping[VariantKey, T]) -> dict[str, dict[str, T]]:
    """Return the variants by tenant and server id, the latter sorted; "" has the common ones."""
    found: dict[str, dict[str, T]] = {}
    for key, variant in sorted(variants.items(), key=itemgetter(0)):
        found.setdefault(key.tenant, {})[key.server_id] = variant
    return found

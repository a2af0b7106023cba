"""The tools, prompts and resources in which leases differ from what is recorded.

See design.md#tools-of-a-lease.

The worker that holds a lease is the home of its list: only it has the instance, and a lease never
moves. Most leases do not differ, and have no entry here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

from leaseway.data_plane.core.desired_state import HeldVariant
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.core.tools.own_items import OwnLists, own_prompts_resources
from leaseway.data_plane.core.tools.own_tools import OwnTools, changed_tools, own_tools
from leaseway.data_plane.core.tools.toolset import CompiledToolset
from leaseway.data_plane.instances.generation import Generation
from leaseway.data_plane.instances.live_instance import LiveInstance
from leaseway.data_plane.instances.pool import Pool
from leaseway.spec.model import VariantKey
from leaseway.wire import bounds

_READ_INLINE: Final = 64 * bounds.KIB
"""Bytes of changed definitions that are compiled on the event loop, in some milliseconds."""
_REASON: Final = "LEASE_TOOLS_SKIPPED"
_MAX_NAMED: Final = 5

Holder = tuple[str, str, str]
"""The tenant, the session and the user of a lease."""


@dataclass(frozen=True, eq=False)
class LeaseVariant:
    """A variant as the instance of a lease lists its tools.

    Attributes:
        base: The variant of all; once another one is served, this no longer holds.
        variant: The variant by which the calls of the lease are checked.
        own: In what it differs.
    """

    base: HeldVariant
    variant: HeldVariant
    own: OwnLists


@dataclass(frozen=True, slots=True)
class _Entry:
    lease: WorkerLease
    unoffered: frozenset[str]
    base: HeldVariant
    unoffered_prompts: frozenset[str] | None = None
    found: LeaseVariant | None = None
    skipped: tuple[str, ...] = ()


class LeaseTools:
    """What the leases of a worker list otherwise: tools, prompts, resources and templates.

    Args:
        pool: The served generations.

    Attributes:
        variants: By server and holder, those that differ.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._context = pool.context
        self.variants: dict[str, dict[Holder, LeaseVariant]] = {}
        self._entries: dict[str, _Entry] = {}
        self._changes: WeakValueDictionary[str, asyncio.Event] = WeakValueDictionary()
        self._shared: WeakValueDictionary[tuple[str, ...], LeaseVariant] = WeakValueDictionary()
        """By digest: leases that differ in the same way share what is compiled."""

    def find(self, lease: WorkerLease) -> LeaseVariant | None:
        """Return the variant of a lease; None if it does not differ."""
        entry = self._entries.get(lease.id)
        return entry.found if entry is not None else None

    def next_change(self, lease: WorkerLease) -> asyncio.Event:
        """Return an event that is set when a lease may have other tools, or ends."""
        changed = self._changes.get(lease.id)
        if changed is None:
            changed = self._changes[lease.id] = asyncio.Event()
        return changed

    def _wake(self, lease: WorkerLease) -> None:
        changed = self._changes.pop(lease.id, None)
        if changed is not None:
            changed.set()

    async def compile(self, live: LiveInstance, generation: Generation) -> CompiledToolset | None:
        """Compile what an instance adds if it is much, in a thread, for `update`."""
        toolset, listed = generation.variant.toolset, live.instance.tools
        if not _may_differ(generation):
            return None
        new = changed_tools(toolset, listed)
        if sum(len(listed[name]) for name in new) <= _READ_INLINE:
            return None
        made = await asyncio.to_thread(own_tools, toolset, listed)
        return made.toolset if made is not None else None

    def update(
        self,
        lease: WorkerLease,
        live: LiveInstance,
        generation: Generation,
        compiled: CompiledToolset | None = None,
    ) -> None:
        """Let a lease use what its instance has listed last.

        Args:
            lease: The lease, which is held.
            live: Its instance.
            generation: The generation that new calls of its holder use.
            compiled: A toolset with compiled plans to use again; None for the last one.
        """
        entry = self._entries.get(lease.id)
        self._wake(lease)
        if not _may_differ(generation):
            if entry is not None:
                self.forget(lease)
                live.use_own(None, generation.variant.toolset)
            return
        base = generation.variant
        if entry is None:
            entry = _Entry(lease, _unoffered(base, live), base)
        elif compiled is None and entry.found is not None and entry.found.own.tools is not None:
            compiled = entry.found.own.tools.toolset
        entry = _with_unoffered_prompts(entry, base, live)
        own = _own_lists(entry, base.toolset, live, compiled)
        skipped = own.skipped
        found = None
        if own.digest:
            skipped += tuple(self._clashes(lease, own.tools) if own.tools is not None else ())
            found = self._share(base, own, entry)
            if found is None:
                skipped = (*skipped, f"{own.size} bytes, for which there is no memory")
        live.use_own(found.own if found is not None else None, base.toolset)
        self._entries[lease.id] = replace(entry, base=base, found=found, skipped=skipped)
        self._index(lease, found)
        if skipped != entry.skipped:
            self._report(lease.variant)

    def is_behind(self, lease: WorkerLease, generation: Generation) -> bool:
        """Return whether a lease has what followed from another variant than the served one."""
        entry = self._entries.get(lease.id)
        return entry is not None and entry.base is not generation.variant

    def forget(self, lease: WorkerLease) -> None:
        """Forget a lease that has ended."""
        self._wake(lease)
        entry = self._entries.pop(lease.id, None)
        if entry is None:
            return
        self._index(lease, None)
        if entry.skipped:
            self._report(lease.variant)

    def _index(self, lease: WorkerLease, found: LeaseVariant | None) -> None:
        key = lease.key
        holder = (key.tenant, key.session, lease.user)
        if found is not None:
            self.variants.setdefault(key.server_id, {})[holder] = found
            return
        holders = self.variants.get(key.server_id)
        if holders is not None:
            holders.pop(holder, None)
            if not holders:
                del self.variants[key.server_id]

    def _share(self, base: HeldVariant, own: OwnLists, entry: _Entry) -> LeaseVariant | None:
        """Return the variant with own lists, made once; None if there are too many of others."""
        prompts = entry.unoffered_prompts or ()
        key = (str(base.key), own.digest, *sorted(entry.unoffered), "", *sorted(prompts))
        known = self._shared.get(key)
        if known is not None and known.base is base:
            return known
        size = sum(other.own.size for other in self._shared.values())
        if size + own.size > bounds.MAX_OWN_TOOL_BYTES:
            return None
        made = LeaseVariant(base, replace(base, toolset=own.over(base.toolset)), own)
        self._shared[key] = made
        return made

    def _clashes(self, lease: WorkerLease, own: OwnTools) -> Iterator[str]:
        """Yield a part of a sentence for each new tool whose name another server's tool has."""
        tools = own.toolset.tools
        names = {tools[name].name: name for name in own.changed}
        for variant in self._pool.desired_state.visible_to(lease.key.tenant, lease.agent):
            server_id = variant.key.server_id
            if server_id == lease.key.server_id:
                continue
            for name in names.keys() & variant.toolset.by_exposed_name.keys():
                qualified = f"{lease.key.server_id}:{names[name]}"
                yield f"'{names[name]}' (server {server_id} has the name {name}; call {qualified})"

    def _report(self, key: VariantKey) -> None:
        found = {
            text: None
            for entry in self._entries.values()
            if entry.lease.variant == key
            for text in entry.skipped
        }
        more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
        message = (
            f"Leased instances of server {key} have added or changed what their sessions do not "
            f"see: {', '.join(list(found)[:_MAX_NAMED])}{more}. "
            f"(Worker {self._context.worker_id}.)"
        )
        self._context.reports.set_problem(
            WorkerProblem("server", _REASON, message, key, severity="warning"), bool(found)
        )


def _may_differ(generation: Generation) -> bool:
    """Return whether the leases of a generation have their own tools.

    The list of a server that acts for somebody is that of its subject
    (design.md#tokens-for-remote-servers).
    """
    return generation.variant.toolset.lease_rules is not None and generation.listed_for is None


def _unoffered(base: HeldVariant, live: LiveInstance) -> frozenset[str]:
    """Return the tools that an instance does not list to the client for which it was started."""
    if live.is_typical:
        return frozenset()
    listed: Mapping[str, bytes] = live.instance.tools
    return frozenset(name for name in base.toolset.tools if name not in listed)


def _with_unoffered_prompts(entry: _Entry, base: HeldVariant, live: LiveInstance) -> _Entry:
    """Remember which prompts an instance does not list to its client, once it has listed them."""
    listed, common = live.instance.prompts_resources, base.toolset.prompts_resources
    if listed is None or entry.unoffered_prompts is not None or live.is_typical:
        return entry
    absent = common.absent(listed.prompts, listed.resources, listed.templates)
    return replace(entry, unoffered_prompts=frozenset(absent.prompts))


def _own_lists(
    entry: _Entry, common: CompiledToolset, live: LiveInstance, compiled: CompiledToolset | None
) -> OwnLists:
    """Return in what an instance differs."""
    instance, unoffered = live.instance, entry.unoffered_prompts or frozenset()
    return OwnLists(
        own_tools(common, instance.tools, entry.unoffered, compiled),
        own_prompts_resources(
            common.prompts_resources, instance.prompts_resources, common.lease_rules, unoffered
        ),
    )

"""The states of a server variant: last known good, and served.

A *last known good* variant has a listing, and exposed names by its own rules. In a *served*
variant, name clashes between servers are resolved, too; workers get the served variant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS, NamedKind
from leaseway.control_plane.core.catalog.listing import NOT_LISTED, ServerListing
from leaseway.control_plane.core.catalog.policy_names import names_in, policy_problems
from leaseway.control_plane.core.catalog.prompts_resources import (
    ResourceExposure,
    expose_recorded,
    expose_resources,
    resource_problems,
)
from leaseway.control_plane.core.catalog.rule_arguments import rule_problems
from leaseway.control_plane.core.problems import Problem
from leaseway.spec.canonical import canonical_bytes
from leaseway.spec.filters.names import NO_FILTER, NameFilter
from leaseway.spec.model import NameRules, ServerSpec, VariantKey
from leaseway.wire.messages.mcp import NO_INTRODUCTION, Introduction

SkippedNames = frozenset[tuple[str, str]]
_MAX_DERIVED: Final = 32
"""Different rules of which a listing keeps what was derived by them."""
_WITHOUT_ITEMS: Final = frozenset({"prompts", "resources", "subscribe"})
"""Capabilities of a server that lists nothing now: it may list something later, and resources that
it does not list may be readable."""


class Hashes(NamedTuple):
    """The version of a variant's content; compared for equality only (design.md#sync)."""

    launch: str
    exposure: str
    toolset: str


@dataclass(frozen=True)
class ExposedName:
    """A tool or prompt that passes the rules; skipped if a smaller server id has its name."""

    original: str
    name: str
    skipped: bool = False


_Pairs = tuple[tuple[str, str], ...]
_Names = tuple[ExposedName, ...]


@dataclass(frozen=True)
class LastKnownGood:
    """A variant that has been listed, and the names that its rules expose.

    The hashes are stored beside the spec because a spec from a worker lacks the filters and
    transforms that are part of them.

    Attributes:
        exposed: (original, exposed name) of the tools that pass the rules, before clashes.
        prompts: The same for prompts.
        resource_filter: Which URIs may be read.
        rules_known: Whether `spec` contains the rules; false for one from a worker.
        lease_rules: What workers name the tools by that a lease's instance adds; None for a shared
            server, or if that is unknown.
    """

    spec: ServerSpec
    launch_hash: str
    exposure_hash: str
    listing: ServerListing
    exposed: _Pairs
    prompts: _Pairs = ()
    resource_filter: NameFilter = NO_FILTER
    rules_known: bool = True
    lease_rules: NameRules | None = None

    def names(self, kind: NamedKind) -> _Pairs:
        return self.exposed if kind is TOOLS else self.prompts

    @property
    def awaits_login(self) -> bool:
        """Whether nothing could be listed yet, for want of a first login."""
        return _awaits_login(self.spec, self.listing)

    @cached_property
    def without_clashes(self) -> Served:
        """The served variant if it loses no name, which is the usual case; built once."""
        toolset = self.exposed, self.prompts, self.resource_filter, self.lease_rules
        known: tuple[_Names, _Names, str] | None = self.listing.derived.get(toolset)
        if known is None:
            tools, prompts = _exposed_as(self, TOOLS), _exposed_as(self, PROMPTS)
            known = tools, prompts, _toolset_hash(self, tools, prompts)
            _remember(self.listing, toolset, known)
        return _serve_as(self, *known)


@dataclass(frozen=True)
class Served:
    """A variant as workers get it, with the tools and prompts that pass its rules."""

    spec: ServerSpec
    hashes: Hashes
    listing: ServerListing
    exposed: tuple[ExposedName, ...]
    prompts: tuple[ExposedName, ...] = ()
    resource_filter: NameFilter = NO_FILTER
    lease_rules: NameRules | None = None

    @property
    def key(self) -> VariantKey:
        return self.spec.key

    @property
    def awaits_login(self) -> bool:
        """Whether nothing could be listed yet, for want of a first login."""
        return _awaits_login(self.spec, self.listing)

    @property
    def awaits_tenant(self) -> bool:
        """Whether a tenant's own variant, which is listed for it alone, waits for its login."""
        is_own = bool(self.key.tenant) and self.spec.part.auth.subject == "tenant"
        return is_own and self.awaits_login

    @cached_property
    def callable_tools(self) -> tuple[ExposedName, ...]:
        return tuple(tool for tool in self.exposed if not tool.skipped)

    @cached_property
    def callable_prompts(self) -> tuple[ExposedName, ...]:
        return tuple(prompt for prompt in self.prompts if not prompt.skipped)

    @cached_property
    def readable(self) -> ResourceExposure:
        """The resources and templates that callers see."""
        return expose_resources(self.listing, self.resource_filter)

    @property
    def offers_anything(self) -> bool:
        """Whether callers see a tool, a prompt, a resource or a template of it."""
        readable = self.readable
        return bool(
            self.callable_tools or self.callable_prompts or readable.resources or readable.templates
        )

    @cached_property
    def introduction(self) -> Introduction:
        """What callers know of what the server says; capabilities are those that they see.

        A list that was recorded shows a capability, too: not every kind of server declares them.
        """
        said, readable = self.listing.introduction, self.readable
        has = set(said.capabilities)
        if self.callable_prompts:
            has.add("prompts")
        elif self.listing.prompts:
            has.discard("prompts")  # the rules hide them all
        if readable.resources or readable.templates:
            has.add("resources")
        if not self.offers_anything:
            said, has = NO_INTRODUCTION, has & _WITHOUT_ITEMS
        return replace(said, capabilities=tuple(sorted(has)))

    def names(self, kind: NamedKind) -> tuple[ExposedName, ...]:
        """Return the tools or prompts that pass the rules."""
        return self.exposed if kind is TOOLS else self.prompts

    def callable(self, kind: NamedKind) -> tuple[ExposedName, ...]:
        return self.callable_tools if kind is TOOLS else self.callable_prompts


def _of_some_tools(said: Introduction) -> Introduction:
    """Return what a caller may know of a server that is granted only some of its tools.

    Its texts may speak of the others; these tools may still log.
    """
    return Introduction(capabilities=tuple({"logging"}.intersection(said.capabilities)))


def granted_to(served: Served, tenant: str, agent: str = "") -> Served | None:
    """Return the part of a variant that a caller is granted, or None if it is granted nothing."""
    policy = served.spec.policy
    if policy.grants is None:
        return served
    if not policy.is_visible(tenant, agent):
        return None
    listing = served.listing
    if not policy.allows_all(tenant, agent):  # a grant of some tools is none of other things
        listing = replace(
            listing,
            prompts=(),
            resources=(),
            templates=(),
            introduction=_of_some_tools(listing.introduction),
        )
        served = replace(served, prompts=(), resource_filter=NameFilter(blacklist=("*",)))
    return replace(
        served,
        exposed=tuple(
            name for name in served.exposed if policy.allows(tenant, agent, name.original)
        ),
        listing=replace(
            listing,
            tools=tuple(tool for tool in listing.tools if policy.allows(tenant, agent, tool.name)),
        ),
    )


def await_login(spec: ServerSpec) -> LastKnownGood:
    """Return the variant of a server to which nobody has logged in.

    Workers get it, so that its first user can log in there; callers see none of its tools.
    """
    return _good(spec, NOT_LISTED, (), ())


def _awaits_login(spec: ServerSpec, listing: ServerListing) -> bool:
    return listing == NOT_LISTED and spec.part.auth.logs_in


def build_good(
    spec: ServerSpec, listing: ServerListing
) -> tuple[LastKnownGood, tuple[Problem, ...]]:
    """Apply a spec's rules to a listing."""
    names = names_in(spec.policy)
    rules = spec.tools, spec.prompts, spec.resources, spec.transforms, spec.policy.rules, names
    known: tuple[_Pairs, _Pairs] | None = listing.derived.get(rules)
    if known is not None:
        return _good(spec, listing, *known), ()
    tools = expose_recorded(spec, listing.tools, TOOLS)
    prompts = expose_recorded(spec, listing.prompts, PROMPTS)
    problems = tools.problems + prompts.problems + resource_problems(spec, listing)
    problems += rule_problems(spec, listing)
    exposed = {name: original for original, name in tools.exposed}
    problems += policy_problems(spec, listing, names, exposed)
    if not problems:  # they name the server and the tenant
        _remember(listing, rules, (tools.exposed, prompts.exposed))
    return _good(spec, listing, tools.exposed, prompts.exposed), problems


def _good(
    spec: ServerSpec, listing: ServerListing, exposed: _Pairs, prompts: _Pairs
) -> LastKnownGood:
    return LastKnownGood(
        spec=spec,
        launch_hash=spec.launch_hash,
        exposure_hash=spec.exposure_hash,
        listing=listing,
        exposed=exposed,
        prompts=prompts,
        resource_filter=spec.resources,
        lease_rules=None if spec.truely_stateless else _lease_rules(spec),
    )


def _lease_rules(spec: ServerSpec) -> NameRules:
    return NameRules(spec.tools, spec.transforms, spec.prompts)


def _remember(listing: ServerListing, rules: Hashable, derived: object) -> None:
    if len(listing.derived) >= _MAX_DERIVED:
        listing.derived.clear()
    listing.derived[rules] = derived


def adopt(served: Served) -> LastKnownGood:
    """Build a last known good variant from one that a worker holds; its rules are unknown."""
    return LastKnownGood(
        spec=served.spec,
        launch_hash=served.hashes.launch,
        exposure_hash=served.hashes.exposure,
        listing=served.listing,
        exposed=tuple((tool.original, tool.name) for tool in served.exposed),
        prompts=tuple((prompt.original, prompt.name) for prompt in served.prompts),
        resource_filter=served.resource_filter,
        rules_known=False,
        lease_rules=served.lease_rules,
    )


def serve(
    good: LastKnownGood, skipped: SkippedNames, skipped_prompts: SkippedNames = frozenset()
) -> Served:
    """Build the served variant from the names that it loses to other servers.

    Args:
        skipped: (server id, original name) of tools that lost their names.
        skipped_prompts: The same for prompts.
    """
    if not skipped and not skipped_prompts:  # for example, if every server has a prefix
        return good.without_clashes
    exposed = _exposed_as(good, TOOLS, skipped)
    prompts = _exposed_as(good, PROMPTS, skipped_prompts)
    if not any(name.skipped for name in (*exposed, *prompts)):
        return good.without_clashes
    return _serve_as(good, exposed, prompts, _toolset_hash(good, exposed, prompts))


def _toolset_hash(good: LastKnownGood, exposed: _Names, prompts: _Names) -> str:
    state = hashlib.sha256(good.listing.digest.encode())
    state.update(_encode_names(exposed))
    state.update(_encode_names(prompts))
    state.update(canonical_bytes(good.resource_filter))
    if good.lease_rules is not None:
        state.update(canonical_bytes(good.lease_rules))
    return state.hexdigest()[:32]


def _serve_as(good: LastKnownGood, exposed: _Names, prompts: _Names, toolset_hash: str) -> Served:
    return Served(
        spec=good.spec,
        hashes=Hashes(good.launch_hash, good.exposure_hash, toolset_hash),
        listing=good.listing,
        exposed=exposed,
        prompts=prompts,
        resource_filter=good.resource_filter,
        lease_rules=good.lease_rules,
    )


def relist(
    good: LastKnownGood, listing: ServerListing
) -> tuple[LastKnownGood, tuple[Problem, ...]]:
    """Apply a newer listing with the same launch hash to a last known good variant.

    If its rules are unknown (no valid configuration since the control plane started), only tools
    and prompts that were exposed before stay exposed, so that no filtered one becomes visible.
    """
    if good.rules_known:
        return build_good(good.spec, listing)
    tools = tuple(pair for pair in good.exposed if pair[0] in listing.by_name)
    prompts = tuple(pair for pair in good.prompts if pair[0] in listing.prompts_by_name)
    return replace(good, listing=listing, exposed=tools, prompts=prompts), ()


def _exposed_as(
    good: LastKnownGood, kind: NamedKind, skipped: SkippedNames = frozenset()
) -> tuple[ExposedName, ...]:
    server_id = good.spec.key.server_id
    return tuple(
        ExposedName(original, name, (server_id, original) in skipped)
        for original, name in good.names(kind)
    )


def _encode_names(exposed: tuple[ExposedName, ...]) -> bytes:
    return repr([(name.original, name.name, name.skipped) for name in exposed]).encode()

"""What a worker holds, and what a delta changes about it (DESIGN §8).

Pure: it is immutable; `apply` returns the next one and what is to be done about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from leaseway.data_plane.core.tools.policy import Judge
from leaseway.data_plane.core.tools.toolset import CompiledToolset
from leaseway.spec.model import ServerSpec, VariantKey


@dataclass(frozen=True, eq=False)
class HeldVariant:
    """One variant that the worker serves.

    Attributes:
        spec: The definition.
        launch_hash: Of what needs a new instance.
        exposure_hash: Of what does not.
        toolset_hash: Of the tools recorded and exposed.
        toolset: The tools, compiled.
        sent: The variant as it was sent, for a control plane that has forgotten it.
    """

    spec: ServerSpec
    launch_hash: str
    exposure_hash: str
    toolset_hash: str
    toolset: CompiledToolset
    sent: bytes = b""

    @property
    def key(self) -> VariantKey:
        return self.spec.key

    @cached_property
    def judge(self) -> Judge:
        """What decides whether a call of it may run."""
        return Judge(self.spec.policy, self.toolset.tools, starts_in(self.spec))


def starts_in(spec: ServerSpec) -> str:
    """Return the folder that a server's process starts in; empty where that is not known yet."""
    if not spec.is_process or spec.image or "$" in spec.cwd:
        return ""
    return spec.cwd or str(Path.cwd())


@dataclass(frozen=True)
class Update:
    """A delta as the core knows it: what to serve from now on, and what no longer."""

    epoch: int
    registry_version: int
    upserts: tuple[HeldVariant, ...] = ()
    removals: tuple[VariantKey, ...] = ()


@dataclass(frozen=True)
class Changes:
    """What an update changed.

    Attributes:
        launched: New variants, and those whose instances must be replaced.
        exposed: Variants whose instances stay and whose tools or settings changed.
        removed: Variants that are held no longer.
    """

    launched: tuple[HeldVariant, ...] = ()
    exposed: tuple[HeldVariant, ...] = ()
    removed: tuple[HeldVariant, ...] = ()


@dataclass(frozen=True)
class DesiredState:
    """All variants that a worker serves, at one registry version.

    Attributes:
        variants: By key.
        registry_version: What callers may ask for; never falls.
        epoch: The highest epoch seen.
    """

    variants: Mapping[VariantKey, HeldVariant] = field(default_factory=dict)
    registry_version: int = 0
    epoch: int = 0

    def find(self, server_id: str, tenant: str) -> HeldVariant | None:
        """Return what a tenant gets under a server id: its own variant, else the common one."""
        own = self.variants.get(VariantKey(server_id, tenant)) if tenant else None
        return own or self.variants.get(VariantKey(server_id))

    def visible_to(self, tenant: str, agent: str = "") -> Iterable[HeldVariant]:
        """Return the variants that a caller sees, ordered by server id."""
        server_ids = sorted({key.server_id for key in self.variants})
        found = (self.find(server_id, tenant) for server_id in server_ids)
        return [
            variant
            for variant in found
            if variant is not None and variant.spec.policy.sees(tenant, agent)
        ]


def apply(desired_state: DesiredState, update: Update) -> tuple[DesiredState, Changes]:
    """Return the desired state after an update, and what it changed.

    An upsert wins over a removal of the same variant. What is equal in all hashes changes nothing.
    """
    variants = dict(desired_state.variants)
    upserted = {variant.key for variant in update.upserts}
    removed = tuple(
        variants.pop(key)
        for key in dict.fromkeys(update.removals)
        if key in variants and key not in upserted
    )
    launched: list[HeldVariant] = []
    exposed: list[HeldVariant] = []
    for variant in update.upserts:
        before = variants.get(variant.key)
        variants[variant.key] = variant
        if before is None or before.launch_hash != variant.launch_hash:
            launched.append(variant)
        elif (before.exposure_hash, before.toolset_hash) != (
            variant.exposure_hash,
            variant.toolset_hash,
        ):
            exposed.append(variant)
    after = replace(
        desired_state,
        variants=variants,
        registry_version=max(desired_state.registry_version, update.registry_version),
        epoch=max(desired_state.epoch, update.epoch),
    )
    return after, Changes(tuple(launched), tuple(exposed), removed)

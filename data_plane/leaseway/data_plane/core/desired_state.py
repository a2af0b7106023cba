"""The desired state of a worker, and how updates from the control plane change it (design.md#sync).

Pure and immutable: `apply` returns the next state and the changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from leaseway.data_plane.core.tools.policy import ToolPolicies
from leaseway.data_plane.core.tools.toolset import CompiledToolset
from leaseway.spec.auth import Subject
from leaseway.spec.model import ServerSpec, VariantKey


@dataclass(frozen=True, eq=False)
class HeldVariant:
    """One variant of a server that the worker serves.

    Attributes:
        launch_hash: Hash of the settings whose change needs a new instance.
        exposure_hash: Hash of all other settings.
        toolset_hash: Hash of the recorded and exposed tools.
        toolset: The compiled tools.
        sent: The variant as it was received, compressed, to send it to a control plane that has
            lost it.
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
    def subject(self) -> Subject:
        """Whose connections its calls use; each call asks for it."""
        return self.spec.part.auth.subject

    @cached_property
    def policies(self) -> ToolPolicies:
        """The policies of its tools."""
        spec = self.spec
        folder = working_folder(spec)
        return ToolPolicies(spec.key.server_id, spec.policy, self.toolset.tools, folder)


def working_folder(spec: ServerSpec) -> str:
    """Return the working folder of a server's process; empty if there is none or it is unknown."""
    part = spec.part
    if not part.on_worker or "$" in part.cwd:
        return ""
    try:
        return part.cwd or str(Path.cwd())
    except OSError:  # it was deleted, such as with the release that the worker was started in
        return ""


@dataclass(frozen=True)
class Update:
    """A delta from the control plane."""

    epoch: int
    registry_version: int
    upserts: tuple[HeldVariant, ...] = ()
    removals: tuple[VariantKey, ...] = ()


@dataclass(frozen=True)
class Changes:
    """The changes of an update.

    Attributes:
        launched: New variants, and variants whose instances must be replaced.
        exposed: Variants with changed tools or settings, whose instances continue.
        removed: Variants that are no longer served.
    """

    launched: tuple[HeldVariant, ...] = ()
    exposed: tuple[HeldVariant, ...] = ()
    removed: tuple[HeldVariant, ...] = ()


@dataclass(frozen=True)
class DesiredState:
    """All variants that a worker serves, at one registry version.

    Attributes:
        registry_version: The version that calls may require; it never decreases.
        epoch: The highest epoch seen.
    """

    variants: Mapping[VariantKey, HeldVariant] = field(default_factory=dict)
    registry_version: int = 0
    epoch: int = 0

    def find(self, server_id: str, tenant: str) -> HeldVariant | None:
        """Return a tenant's own variant of a server, or else the common one."""
        own = self.variants.get(VariantKey(server_id, tenant)) if tenant else None
        return own or self.variants.get(VariantKey(server_id))

    def visible_to(self, tenant: str, agent: str = "") -> Iterable[HeldVariant]:
        """Return the variants that a caller may see, ordered by server id."""
        server_ids = sorted({key.server_id for key in self.variants})
        found = (self.find(server_id, tenant) for server_id in server_ids)
        return [
            variant
            for variant in found
            if variant is not None and variant.spec.policy.is_visible(tenant, agent)
        ]


def apply(desired_state: DesiredState, update: Update) -> tuple[DesiredState, Changes]:
    """Return the desired state after an update, and its changes.

    An upsert wins over a removal of the same variant. A variant with equal hashes has not changed.
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

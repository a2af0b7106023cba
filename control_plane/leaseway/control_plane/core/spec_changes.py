"""Describes what a new configuration changes; names keys only, as values may be secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields

from leaseway.spec.model import ServerSpec, VariantKey


def spec_changes(
    before: Mapping[VariantKey, ServerSpec], after: Mapping[VariantKey, ServerSpec]
) -> tuple[str, ...]:
    """Return a line for each added, removed or changed variant, ordered by key."""
    return tuple(_lines(before, after))


def _lines(
    before: Mapping[VariantKey, ServerSpec], after: Mapping[VariantKey, ServerSpec]
) -> Iterator[str]:
    for key in sorted({*before, *after}):
        if key not in before:
            yield f"added {key}"
        elif key not in after:
            yield f"removed {key}"
        elif before[key] != after[key]:
            old, new = before[key], after[key]
            effect = "restarts" if old.launch_hash != new.launch_hash else "keeps running"
            yield f"changed {key} ({effect}): {', '.join(_changed_keys(old, new))}"


def _changed_keys(old: ServerSpec, new: ServerSpec) -> Iterator[str]:
    for field in fields(ServerSpec):
        if getattr(old, field.name) != getattr(new, field.name):
            yield field.name.replace("_", "-") if field.name == "truely_stateless" else field.name

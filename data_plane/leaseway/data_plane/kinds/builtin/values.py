"""What the kit gets of its entry."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.kinds.builtin import BuiltinPart


def values_of(part: BuiltinPart, resolver: Resolver) -> ResolvedValues:
    """Return the command that runs the kit."""
    return ResolvedValues(
        command=sys.executable,
        args=("-P", "-m", "leaseway.data_plane.kit", *_kit_options(part, resolver)),
        env=resolver.values("env", part.env),
    )


def _kit_options(part: BuiltinPart, resolver: Resolver) -> Iterator[str]:
    kit = part.builtin
    for tool in kit.tools:
        yield from ("--tool", tool)
    for i, root in enumerate(kit.roots):
        # A separate argument and absolute, so that a sandbox finds and mounts it.
        yield from ("--root", str(Path(resolver.text(f"roots[{i}]", root)).absolute()))
    for i, entry in enumerate(kit.commands):
        yield from ("--command", resolver.text(f"commands[{i}]", entry))
    for i, host in enumerate(kit.hosts):
        yield from ("--host", resolver.text(f"hosts[{i}]", host))
    if part.sandbox.strict:
        yield "--confined"

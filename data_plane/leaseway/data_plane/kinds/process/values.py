"""What a command gets of its entry."""

from __future__ import annotations

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.kinds.shared import CommandPart


def values_of(part: CommandPart, resolver: Resolver) -> ResolvedValues:
    """Return the values of a command."""
    file = resolver.variables("env_file", part.env_file) if part.env_file else {}
    return ResolvedValues(
        command=resolver.text("command", part.command),
        args=resolver.texts("args", part.args),
        cwd=resolver.text("cwd", part.cwd),
        env={**file, **resolver.values("env", part.env)},
    )

"""What a container gets of its entry."""

from __future__ import annotations

from dataclasses import replace

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.process import values as of_command
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.kinds.container import ContainerPart


def values_of(part: ContainerPart, resolver: Resolver) -> ResolvedValues:
    """Return the name of the image, and the values of its command."""
    image = resolver.text("image", part.image)
    return replace(of_command.values_of(part, resolver), image=image)

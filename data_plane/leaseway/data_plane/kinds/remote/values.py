"""What a server on a network gets of its entry."""

from __future__ import annotations

from dataclasses import replace

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.requests import of_requests
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.kinds.remote import RemotePart


def values_of(part: RemotePart, resolver: Resolver) -> ResolvedValues:
    """Return the values of its requests, and the session to join."""
    session_id = resolver.text("sessionId", part.session_id)
    return replace(of_requests(part, resolver), session_id=session_id)

"""What a registered transport gets of its entry."""

from __future__ import annotations

from leaseway.data_plane.core.proxies import NO_PROXIES
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.requests import headers_of, proxies_of
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.kinds.registered import RegisteredPart


def values_of(part: RegisteredPart, resolver: Resolver) -> ResolvedValues:
    """Return all values that a registered transport can use."""
    return ResolvedValues(
        command=resolver.text("command", part.command),
        args=resolver.texts("args", part.args),
        url=resolver.text("url", part.url),
        session_id=resolver.text("sessionId", part.session_id),
        env=resolver.values("env", part.env),
        headers=headers_of(part.headers, resolver),
        proxies=proxies_of({}, resolver) if part.url else NO_PROXIES,
    )

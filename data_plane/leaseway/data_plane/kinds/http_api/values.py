"""What an API gets of its entry."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import assert_never

from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.kinds.requests import of_requests
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.kinds.http_api import HttpApiPart


def values_of(part: HttpApiPart, resolver: Resolver) -> ResolvedValues:
    """Return the values of an API, with its credentials among the headers and the query."""
    requests = of_requests(part, resolver)
    credentials, query = _credentials(part, resolver)
    return replace(
        requests,
        headers={**requests.headers, **credentials},
        credentials=frozenset(credentials),
        query=query,
    )


def _credentials(part: HttpApiPart, resolver: Resolver) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers and query parameters with credentials."""
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    cookies: list[str] = []
    for scheme, credential in part.security.items():
        text = resolver.credential(f"security.{scheme}", credential.value, True)
        match credential.kind:
            case "bearer":
                headers["Authorization"] = f"Bearer {text}"
            case "basic":
                pair = f"{credential.name}:{text}" if credential.name else text
                encoded = base64.b64encode(pair.encode(errors="replace")).decode()
                resolver.secrets.add(f"Basic {encoded}")
                headers["Authorization"] = f"Basic {encoded}"
            case "header":
                headers[credential.name] = text
            case "query":
                query[credential.name] = text
            case "cookie":
                cookies.append(f"{credential.name}={text}")
            case _:
                assert_never(credential.kind)
    if cookies:
        headers["Cookie"] = "; ".join(cookies)
    return headers, query

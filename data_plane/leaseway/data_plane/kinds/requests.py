"""What servers that are reached by HTTP requests get of their entries."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from leaseway.data_plane.core.proxies import (
    DIRECT,
    NO_PROXIES,
    BadProxy,
    Proxies,
    Proxy,
    of_environment,
    parse_proxy,
)
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.references.resolver import Resolver
from leaseway.spec.auth import ASSERTION, CLIENT_ID
from leaseway.spec.kinds.shared import RequestPart
from leaseway.spec.references import Value
from leaseway.wire.secrets.secret_names import looks_secret


def of_requests(part: RequestPart, resolver: Resolver) -> ResolvedValues:
    """Return the values of requests."""
    return ResolvedValues(
        url=resolver.text("url", part.url),
        headers=headers_of(part.headers, resolver),
        auth={
            name: resolver.credential(f"auth.{name}", value, name != CLIENT_ID)
            for name, value in part.auth.values.items()
            if name != ASSERTION
        },
        assertion=_assertion(part.auth.values.get(ASSERTION), resolver),
        proxies=proxies_of(part.proxy, resolver),
    )


def _assertion(value: Value | None, resolver: Resolver) -> Callable[[], str] | None:
    """Return what reads an assertion, which is there now and is replaced often."""
    if value is None:
        return None
    resolver.value(f"auth.{ASSERTION}", value, True)
    return partial(resolver.read, value)


def headers_of(headers: Mapping[str, Value], resolver: Resolver) -> dict[str, str]:
    """Return headers; every referenced one is a secret."""
    return {
        name: resolver.credential(
            f"headers.{name}", value, value.kind != "literal" or looks_secret(name)
        )
        for name, value in headers.items()
    }


def proxies_of(given: Mapping[str, Value], resolver: Resolver) -> Proxies:
    """Return the proxies of a server's requests: those of its entry, or the environment's."""
    try:
        if not given:
            proxies = of_environment(resolver.known)
        else:
            texts = {
                name: resolver.value(f"proxy.{name}", value, name == "password")
                for name, value in given.items()
            }
            text = texts.pop("url", "")
            proxies = NO_PROXIES
            if text and text != DIRECT:
                proxies = Proxies(parse_proxy(text, **texts))
        # Also of proxies in the environment, which no key of an entry names.
        used = [proxies.fixed] if proxies.fixed is not None else _known(proxies.variables.values())
    except BadProxy as error:
        resolver.missing.append(("proxy", str(error)))
        return NO_PROXIES
    for proxy in used:
        if proxy is not None and proxy.password:
            pair = f"{proxy.username}:{proxy.password}"
            encoded = base64.b64encode(pair.encode(errors="replace")).decode()
            resolver.secrets.update((proxy.password, f"Basic {encoded}"))
    return proxies


def _known(texts: Iterable[str]) -> Iterator[Proxy]:
    for text in texts:
        with contextlib.suppress(BadProxy):  # reported when a request would go through it
            yield parse_proxy(text)

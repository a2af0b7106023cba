"""Where a document's requests go: its own server, and those of single paths and operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urljoin, urlsplit, urlunsplit

from leaseway.control_plane.config.openapi.references import Unsupported
from leaseway.spec.kinds.http_tools import is_base_url

_MAX_SERVERS: Final = 100
"""Servers of one list that are read."""
_ADDRESSES: Final = ("https://", "http://")
_PORTS: Final = {"http": 80, "https": 443}


class ServerReader:
    """Reads `servers` at the three places where a document may have them.

    Args:
        items: Every path item, for a document whose servers stand only there.
        address: Where the document was fetched, or empty if it is a file; relative servers are
            below it, and those of a file below the address that it says it has.
    """

    def __init__(
        self, document: Mapping[str, Any], items: Iterable[Any], address: str = ""
    ) -> None:
        own = document.get("$self")
        if not address and isinstance(own, str) and own.startswith(_ADDRESSES):
            address = own
        self._address = address
        urls = self._urls(document.get("servers"))
        if not urls:
            urls = self._most_frequent(items)
        if not urls and address:
            urls = (_absolute("/", address),)
        self._base = next(iter(urls), "")

    @property
    def base_url(self) -> str:
        """The server of the document, or empty if no absolute address is known."""
        return self._base if origin(self._base) else ""

    def own(self, operation: Mapping[str, Any], item: Mapping[str, Any]) -> str:
        """Return the server of an operation, if it is not the document's.

        An address at the document's origin is only a path, so that it follows `base_url`.

        Raises:
            Unsupported: It has no usable address.
        """
        given = operation.get("servers") or item.get("servers")
        if not given:
            return ""
        urls = self._urls(given)
        if not urls:
            raise Unsupported("it has its own 'servers', and none of them is a usable address")
        if self._base in urls:
            return ""
        here = [url for url in urls if not origin(url) or origin(url) == origin(self._base)]
        chosen = (here or urls)[0]
        if chosen in here:
            return (urlsplit(chosen).path or "/") if self._base else chosen
        return chosen

    def _urls(self, servers: Any) -> tuple[str, ...]:
        """Return the usable addresses and paths of a list."""
        found: list[str] = []
        for server in servers[:_MAX_SERVERS] if isinstance(servers, list) else ():
            if isinstance(server, Mapping) and isinstance(server.get("url"), str):
                url = _absolute(_filled(server), self._address)
                if is_base_url(url):
                    found.append(url)
        return tuple(found)

    def _most_frequent(self, items: Iterable[Any]) -> tuple[str, ...]:
        counted: Counter[str] = Counter()
        for item in items:
            operations = item.values() if isinstance(item, Mapping) else ()
            for part in (item, *operations):
                if isinstance(part, Mapping):
                    counted.update(self._urls(part.get("servers"))[:1])
        return tuple(url for url, _ in counted.most_common(1))


def origin(url: str) -> tuple[str, str, int | None] | None:
    """Return scheme, host and port of an address; None for a path."""
    try:
        parts = urlsplit(url)
        if not parts.hostname:
            return None
        return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None


def _filled(server: Mapping[str, Any]) -> str:
    """Return the address of a server with the defaults of its variables, where they have one."""
    url = str(server["url"]).strip()
    variables = server.get("variables")
    for name, variable in variables.items() if isinstance(variables, Mapping) else ():
        if isinstance(variable, Mapping) and "default" in variable:
            url = url.replace(f"{{{name}}}", str(variable["default"]))
    return url


def _absolute(url: str, address: str) -> str:
    """Return an address, below a document's own if it is relative."""
    try:
        parts = urlsplit(urljoin(address, url) if address else url)
    except ValueError:
        return ""
    path = parts.path.rstrip("/")
    if not parts.scheme and not parts.netloc:
        path = f"/{path.lstrip('./')}"  # relative to a document that has no address
    return urlunsplit((parts.scheme.lower(), parts.netloc, path, parts.query, parts.fragment))

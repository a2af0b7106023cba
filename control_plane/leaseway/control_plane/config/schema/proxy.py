"""Reader of `proxy`: the forward proxy of a server with an address (design.md#configuration).

`none` overrides the proxies of the worker's environment. An address as text has no credentials:
these are `username` and `password`, or part of an address that is a reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from leaseway.control_plane.config.schema import credentials
from leaseway.control_plane.config.schema.fields import MAX_HEADER, MAX_URL, worker_value
from leaseway.control_plane.config.schema.issues import Where, quoted
from leaseway.control_plane.config.schema.tables import record_of
from leaseway.control_plane.config.schema.values import reader
from leaseway.control_plane.config.tree.yaml_tree import Leaf, Table, Tree
from leaseway.spec.kinds.shared import PROXY
from leaseway.spec.references import Value

NONE: Final = "none"
_PARTS: Final = frozenset(key.name for key in PROXY)


def _fault(address: str) -> str | None:
    filled = credentials.with_defaults(address, unset="1")
    try:
        parts = urlsplit(filled)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if "@" in parts.netloc:
        return (
            "contains credentials, which logs would show; write {url: …, username: …, password:"
            " {secret: NAME}}."
        )
    if parts.scheme not in ("http", "https") and not address.startswith("${"):
        return (
            f"must be 'none' or the address of an HTTP proxy, such as http://proxy:3128, but is"
            f" {quoted(address[:100])}."
        )
    if parts.path.strip("/") or parts.query or parts.fragment:
        return "may contain only the scheme, the host and the port of the proxy."
    return None if host or address.startswith("${") else "names no host."


def _password(_: str) -> str:
    return "a password"


_URL: Final = worker_value(MAX_URL, _fault)
_FULL: Final = record_of(
    PROXY,
    dict[str, Value],
    "'proxy'",
    {
        "url": _URL,
        "username": worker_value(MAX_HEADER),
        "password": worker_value(MAX_HEADER, kind_of=_password),
    },
)


@reader({"anyOf": [_URL.schema, _FULL.schema]})
def proxy(node: Tree, where: Where) -> Mapping[str, Value]:
    """Read a proxy: `none`, an address, a reference to one, or its parts."""
    if isinstance(node, Leaf) and node.value == NONE:
        return {"url": Value("literal", NONE)}
    if isinstance(node, Table) and any(entry.name in _PARTS for entry in node.entries):
        return _FULL.read(node, where)
    return {"url": _URL.read(node, where)}

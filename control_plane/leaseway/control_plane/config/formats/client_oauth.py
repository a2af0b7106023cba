"""How a person logs in to a server of another client's file: its `oauth`, as native `auth`.

Clients log in one person at a browser, so the login is the tenant's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from leaseway.control_plane.config.formats.client_forms import OPENCODE, ClientForm
from leaseway.control_plane.config.formats.client_variables import with_native_variables
from leaseway.control_plane.config.formats.tool_rules import folded, switch_of
from leaseway.control_plane.config.schema.issues import Where
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Position,
    Table,
    TableEntry,
    Tree,
)
from leaseway.spec.auth import CLIENT_ID, CLIENT_SECRET, LOGIN, METADATA_URL
from leaseway.wire.channels.endpoint import is_loopback_host

Warn = Callable[[TableEntry, str], None]
"""Says why a key is not taken over."""

_ENDPOINTS: Final = ("authorization_endpoint", "token_endpoint", "registration_endpoint")
_NAMES: Final[Mapping[str, str]] = {
    "clientid": CLIENT_ID,
    "clientsecret": CLIENT_SECRET,
    "issuer": "issuer",
    "resource": "resource",
    "authservermetadataurl": METADATA_URL,
    "authorizationurl": "authorization_endpoint",
    "authorizationendpoint": "authorization_endpoint",
    "tokenurl": "token_endpoint",
    "tokenendpoint": "token_endpoint",
    "registrationurl": "registration_endpoint",
    "registrationendpoint": "registration_endpoint",
    "scope": "scopes",
    "scopes": "scopes",
    "redirecturi": "redirect_uri",
    "callbackport": "redirect_uri",
}
"""Native keys by the folded spellings of clients."""
_UNKNOWN: Final = "it has no meaning here"
_REDIRECT: Final = (
    "logins return to a loopback address, or to the console's; register one of them there"
)
_PATH: Final = "only its client knows the path of the redirect; write 'redirect_uri' in 'auth'"
_INCOMPLETE: Final = (
    "without the other endpoints, and a client id or a place to register one, they are discovered"
)
_NO_CLIENT: Final = "there is no client id beside it"


def is_login(member: TableEntry) -> bool:
    """Return whether a key of a server says how a person logs in, in a client's words."""
    if not isinstance(member.value, Table):
        return False
    key = folded(member.name)
    return key == "oauth" or (
        key == "auth" and any(folded(entry.name) in _NAMES for entry in member.members)
    )


def login_of(member: TableEntry, where: Where, form: ClientForm, warn: Warn) -> TableEntry | None:
    """Return the native key `auth` for a client's `oauth`; None if that switches it off.

    Args:
        member: The key, of which `is_login` holds.
        where: Its place.
        form: The form of its file.
        warn: Says why a part of it is not taken over.
    """
    found = _Login(member.at, where, form, warn)
    for entry in member.members:
        if switch_of(entry.name) is not None:
            if isinstance(entry.value, Leaf) and entry.value.value is not switch_of(entry.name):
                return None
        elif not (isinstance(entry.value, Leaf) and entry.value.value is None):
            found.add(entry)
    at = member.at
    grant = TableEntry(LOGIN, at, Table(at, tuple(found.keys())))
    return TableEntry("auth", at, Table(at, (grant,)))


@dataclass
class _Given:
    entry: TableEntry
    value: Tree


class _Login:
    """The native keys of a login, as far as they are known."""

    def __init__(self, at: Position, where: Where, form: ClientForm, warn: Warn) -> None:
        self._at = at
        self._where = where
        self._form = form
        self._warn = warn
        self._given: dict[str, _Given] = {}

    def add(self, entry: TableEntry) -> None:
        name = _NAMES.get(folded(entry.name), "")
        value: Tree | None = entry.value
        if not name:
            self._warn(entry, _UNKNOWN)
            return
        if name == "scopes":
            value = _scopes(entry.value)
        elif name == "redirect_uri":
            value = self._redirect(entry)
        elif name in (CLIENT_ID, CLIENT_SECRET):
            value = with_native_variables(entry.value, self._where.child(entry), self._form)
        if value is not None:
            self._given.setdefault(name, _Given(entry, value))

    def _redirect(self, entry: TableEntry) -> Tree | None:
        value = entry.value.value if isinstance(entry.value, Leaf) else None
        if folded(entry.name) == "callbackport":
            if self._form == OPENCODE:
                self._warn(entry, _PATH)
                return None
            text = f"http://localhost:{value}/callback"
            return Leaf(entry.value.at, text, text)
        if not isinstance(value, str) or not _is_loopback(value):
            self._warn(entry, _REDIRECT)
            return None
        return entry.value

    def keys(self) -> Sequence[TableEntry]:
        """Return all keys, without those that are of no use without others."""
        given = self._given
        has_endpoints = "authorization_endpoint" in given and "token_endpoint" in given
        has_client = CLIENT_ID in given or "registration_endpoint" in given
        if METADATA_URL in given or not has_endpoints or not has_client:
            self._drop(_ENDPOINTS, _INCOMPLETE)
        if CLIENT_ID not in given:
            self._drop((CLIENT_SECRET,), _NO_CLIENT)
        self._add_issuer()
        tenant = Leaf(self._at, "tenant", "tenant")
        return (
            TableEntry("for", self._at, tenant),
            *(TableEntry(name, part.entry.at, part.value) for name, part in given.items()),
        )

    def _drop(self, names: Sequence[str], why: str) -> None:
        for name in names:
            part = self._given.pop(name, None)
            if part is not None:
                self._warn(part.entry, why)

    def _add_issuer(self) -> None:
        """Name an issuer for endpoints: redirects from another authorization server are refused."""
        endpoint = self._given.get("authorization_endpoint")
        if endpoint is None or "issuer" in self._given or not isinstance(endpoint.value, Leaf):
            return
        try:
            parts = urlsplit(str(endpoint.value.value))
        except ValueError:
            return  # reported when it is read
        text = f"{parts.scheme}://{parts.netloc}"
        self._given["issuer"] = _Given(endpoint.entry, Leaf(endpoint.value.at, text, text))


def _scopes(node: Tree) -> Tree | None:
    """Return scopes as a list; None for none, which means those that the server names."""
    if not isinstance(node, Leaf) or not isinstance(node.value, str):
        return None if isinstance(node, Items) and not node.items else node
    items = tuple(Leaf(node.at, scope, scope) for scope in node.value.split())
    return Items(node.at, items) if items else None


def _is_loopback(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme == "http" and is_loopback_host(parts.hostname or "")
    except ValueError:
        return False

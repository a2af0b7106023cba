"""How a person logs in to a server of another client's file: its `oauth`, as native `auth`.

Clients log in one person at a browser, so the login is the tenant's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from leaseway.control_plane.config.formats.client_forms import OPENCODE, ClientForm
from leaseway.control_plane.config.formats.client_variables import with_native_variables
from leaseway.control_plane.config.formats.tool_rules import folded, switch_of
from leaseway.control_plane.config.schema.auth import client_fault, server_fault, tried
from leaseway.control_plane.config.schema.issues import Where, quoted
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Table,
    TableEntry,
    Tree,
)
from leaseway.spec.auth import CLIENT_ID, CLIENT_SECRET, ENDPOINTS, LOGIN, METADATA_URL, Auth
from leaseway.spec.references import Value

Warn = Callable[[TableEntry, str], None]
"""Says why a key is not taken over."""

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
    "oauthscopes": "scopes",
    "oauthresource": "resource",
    "oauthclientid": CLIENT_ID,
    "redirecturi": "redirect_uri",
    "callbackport": "redirect_uri",
}
"""Native keys by the folded spellings of clients."""
LOGIN_PARTS: Final = frozenset(
    {
        *("scopes", "oauthscopes", "oauthresource", "oauthclientid"),
        *("clientid", "clientsecret", "authorizationurl", "tokenurl", "registrationurl"),
        *("oauth2flow",),
    }
)
"""Folded keys of a login that stand beside the URL of a server: Codex's, Kiro's and LiteLLM's."""
_FLOW: Final = "oauth2flow"
_SERVICE: Final = "client_credentials"
_SWITCH: Final = "oauth"
_UNKNOWN: Final = "it has no meaning here"
_NO_FLOW: Final = f"it is neither {quoted(LOGIN)} nor {quoted(_SERVICE)}; a person logs in"
_NOT_FOR_SERVICES: Final = "has no meaning for a client that logs in by itself"
_PATH: Final = "only its client knows the path of the redirect; write 'redirect_uri' in 'auth'"
_PORT: Final = "redirect_port"
_MAX_DIGITS: Final = 5


def is_login(member: TableEntry) -> bool:
    """Return whether a key of a server says how a person logs in, in a client's words."""
    if not isinstance(member.value, Table):
        return False
    key = folded(member.name)
    return key == "oauth" or (
        key == "auth" and any(folded(entry.name) in (*_NAMES, _SWITCH) for entry in member.members)
    )


def with_parts(login: TableEntry | None, parts: Sequence[TableEntry]) -> TableEntry | None:
    """Return a client's `oauth` with keys of it that stand beside it."""
    if not parts:
        return login
    at = parts[0].at
    own = login if login is not None else TableEntry(parts[0].name, at, Table(at, ()))
    return replace(own, value=Table(own.value.at, (*own.members, *parts)))


def login_of(member: TableEntry, where: Where, form: ClientForm, warn: Warn) -> TableEntry | None:
    """Return the native key `auth` for a client's `oauth`; None if that switches it off.

    Args:
        member: The key, of which `is_login` holds.
        where: Its place.
        form: The form of its file.
        warn: Says why a part of it is not taken over.
    """
    found = _Login(member, where, form, warn)
    for entry in member.members:
        on = True if folded(entry.name) == _SWITCH else switch_of(entry.name)
        if on is not None:
            if isinstance(entry.value, Leaf) and entry.value.value is not on:
                return None
        elif not _is_absent(entry.value):
            found.add(entry)
    at = member.at
    keys = tuple(found.keys())
    grant = TableEntry(found.grant, at, Table(at, keys))
    return TableEntry("auth", at, Table(at, (grant,)))


@dataclass
class _Given:
    """A key of a client: its native value, and what that means."""

    entry: TableEntry
    value: Tree
    meaning: Any


class _Login:
    """The native keys of a login, as far as they are known."""

    def __init__(self, member: TableEntry, where: Where, form: ClientForm, warn: Warn) -> None:
        self._member = member
        self._where = where
        self._form = form
        self._warn = warn
        self._given: dict[str, _Given] = {}
        self.grant: Literal["authorization_code", "client_credentials"] = LOGIN

    def add(self, entry: TableEntry) -> None:
        """Add a key of the client; warn of one that cannot be used."""
        if folded(entry.name) == _FLOW:
            self._choose(entry)
            return
        name = _NAMES.get(folded(entry.name), "")
        if not name:
            self._warn(entry, _UNKNOWN)
            return
        if name in self._given:
            self._warn(entry, f"{quoted(name)} is set already by another spelling")
            return
        value = self._native(name, entry)
        if value is None:
            return
        meaning, is_whole = self._tried(name, value, entry)
        if meaning and not is_whole:  # a list, of which some items are of use
            value = _items(value, meaning)
        if meaning:
            self._given[name] = _Given(entry, value, meaning)

    def _choose(self, entry: TableEntry) -> None:
        flow = entry.value.value if isinstance(entry.value, Leaf) else None
        if flow == _SERVICE:
            self.grant = _SERVICE
        elif flow != LOGIN:
            self._warn(entry, _NO_FLOW)

    def _tried(self, name: str, value: Tree, entry: TableEntry) -> tuple[Any, bool]:
        """Return what a value means as a native key, and whether all of it; warn of the rest."""
        meaning, mistakes = tried(name, value, entry.name)
        for mistake in mistakes:
            self._warn(replace(entry, name=mistake.key), mistake.message.rstrip("."))
        return meaning, not mistakes

    def _native(self, name: str, entry: TableEntry) -> Tree | None:
        """Return the value in the native form; None if there is nothing left of it."""
        if name == "scopes":
            return self._scopes(entry)
        if folded(entry.name) == "callbackport":
            return self._redirect(entry)
        if name in (CLIENT_ID, CLIENT_SECRET):
            return with_native_variables(entry.value, self._where.child(entry), self._form)
        return entry.value

    def _scopes(self, entry: TableEntry) -> Tree | None:
        """Return scopes as a list; None for none, which means those that the server names."""
        node = entry.value
        if isinstance(node, Leaf) and isinstance(node.value, str):
            return _items(node, node.value.split())
        if isinstance(node, Items):
            items = tuple(item for item in node.items if not _is_absent(item))
            return replace(node, items=items) if items else None
        return node

    def _redirect(self, entry: TableEntry) -> Tree | None:
        """Return the address that a port of a client means."""
        if self._form == OPENCODE:
            self._warn(entry, _PATH)
            return None
        node = entry.value
        if isinstance(node, Leaf) and isinstance(node.value, str):
            digits = node.value.strip()
            if digits.isdecimal() and len(digits) <= _MAX_DIGITS:
                node = replace(node, value=int(digits))
        port, _ = self._tried(_PORT, node, entry)
        if not port:
            return None
        text = f"http://localhost:{port}/callback"
        return Leaf(node.at, text, text)

    def keys(self) -> Sequence[TableEntry]:
        """Return all keys, without those that are of no use without others."""
        if self.grant == _SERVICE:
            self._drop(("authorization_endpoint", "registration_endpoint"), _NOT_FOR_SERVICES)
            return tuple(
                TableEntry(name, part.entry.at, part.value) for name, part in self._given.items()
            )
        self._drop((CLIENT_SECRET,), client_fault(self._auth()))
        issuer = self._issuer()
        if issuer is not None:
            self._given["issuer"] = issuer
        fault = server_fault(self._auth())
        self._drop(ENDPOINTS, fault)
        if fault and issuer is not None:
            del self._given["issuer"]
        at = self._member.at
        tenant = Leaf(at, "tenant", "tenant")
        return (
            TableEntry("for", at, tenant),
            *(TableEntry(name, part.entry.at, part.value) for name, part in self._given.items()),
        )

    def _auth(self) -> Auth:
        fields = {name: part.meaning for name, part in self._given.items()}
        named = [name for name in (CLIENT_ID, CLIENT_SECRET) if name in fields]
        values: dict[str, Value] = {name: fields.pop(name) for name in named}
        return Auth(grant=LOGIN, subject="tenant", values=values, **fields)

    def _drop(self, names: Sequence[str], fault: str | None) -> None:
        for name in names if fault else ():
            part = self._given.pop(name, None)
            if part is not None:
                self._warn(part.entry, f"{quoted(self._member.name)} {fault}".rstrip("."))

    def _issuer(self) -> _Given | None:
        """Name an issuer for endpoints: redirects from another authorization server are refused."""
        endpoint = self._given.get("authorization_endpoint")
        if endpoint is None or "issuer" in self._given:
            return None
        parts = urlsplit(endpoint.meaning)
        text = f"{parts.scheme}://{parts.netloc}"
        return _Given(endpoint.entry, Leaf(endpoint.value.at, text, text), text)


def _items(node: Tree, texts: Iterable[str]) -> Items:
    return Items(node.at, tuple(Leaf(node.at, text, text) for text in texts))


def _is_absent(node: Tree) -> bool:
    """Return whether a value is one that clients write for an option that is not set."""
    if not isinstance(node, Leaf):
        return False
    return node.value is None or (isinstance(node.value, str) and not node.value.strip())

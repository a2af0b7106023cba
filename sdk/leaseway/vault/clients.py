"""Clients that were registered at authorization servers, sealed: one file beside the logins.

All workers of a machine use them, so that a login registers none if there is one for it. The file
has the vault's format and key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from leaseway.vault.file import LOGIN_SUFFIX, Secret, read_vault, update_secrets
from leaseway.vault.key import VaultError, VaultPlace

MAX_CLIENTS: Final = 1_024
"""Kept clients; the one that was changed longest ago gives way."""
MAX_UNFINISHED: Final = 64
"""Noted subjects of a client; the oldest give way."""


@dataclass(frozen=True)
class ClientKey:
    """What a client was registered for.

    Attributes:
        server: The server whose logins use it.
        url: The server's address.
        authority: The authorization server: its issuer, if it names one, and its token endpoint.
        kind: Which logins use it: those with a certain redirect, or those on another device.
    """

    server: str
    url: str
    authority: str
    kind: str

    @property
    def entry_name(self) -> str:
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:40]
        return f"client.{digest}"


@dataclass(frozen=True)
class RegisteredClient:
    """A registered client. Its representation has no secret.

    Attributes:
        secret: Its secret, or empty.
        auth_method: How it authenticates (RFC 7591), or empty.
        redirect: The registered redirect, or empty.
        scopes: The registered scopes; None for any.
        expires_at: When its secret expires, in seconds since 1970; None for never.
        unfinished: Subjects whose last login with it did not finish, or has not yet.
    """

    key: ClientKey
    id: str
    secret: str = field(default="", repr=False)
    auth_method: str = ""
    redirect: str = ""
    scopes: Sequence[str] | None = None
    expires_at: float | None = None
    unfinished: Sequence[str] = ()


class ClientStore:
    """The kept clients beside a vault. Its methods block."""

    def __init__(self, place: VaultPlace) -> None:
        # Its name has one dot, unlike those of logins.
        self._place = replace(place, path=place.logins / f"clients{LOGIN_SUFFIX}")

    def read(self, key: ClientKey) -> RegisteredClient | None:
        """Return the client for some logins, or None.

        Raises:
            VaultError: The clients cannot be read.
        """
        return _decoded(read_vault(self._place).get(key.entry_name))

    def write(self, client: RegisteredClient) -> None:
        """Keep a client in place of the one that has been used.

        Raises:
            VaultError: It cannot be written.
        """

        def change(entries: dict[str, Secret]) -> None:
            entries[client.key.entry_name] = _encoded(client)
            while len(entries) > MAX_CLIENTS:
                _, oldest = min((secret.set_at, name) for name, secret in entries.items())
                del entries[oldest]

        self._update(change)

    def begin(self, client: RegisteredClient, subject: str) -> None:
        """Note that a subject begins a login with a client, until `end`.

        Raises:
            VaultError: It cannot be noted.
        """
        self._note(client, subject, has_begun=True)

    def end(self, client: RegisteredClient, subject: str) -> None:
        """Note that a login with a client has finished.

        Raises:
            VaultError: It cannot be noted.
        """
        self._note(client, subject, has_begun=False)

    def forget(self, authority: str, client_id: str) -> None:
        """Forget a client that its authorization server does not accept.

        Raises:
            VaultError: It cannot be forgotten.
        """
        known = read_vault(self._place)
        if not any(_is(secret, authority, client_id) for secret in known.values()):
            return

        def change(entries: dict[str, Secret]) -> None:
            for name, secret in tuple(entries.items()):
                if _is(secret, authority, client_id):
                    del entries[name]

        self._update(change)

    def _note(self, client: RegisteredClient, subject: str, *, has_begun: bool) -> None:
        def change(entries: dict[str, Secret]) -> None:
            name = client.key.entry_name
            known = _decoded(entries.get(name))
            if known is None or known.id != client.id:
                return  # another one is kept meanwhile
            noted = [other for other in known.unfinished if other != subject]
            if has_begun:
                noted = [*noted, subject][-MAX_UNFINISHED:]
            entries[name] = _encoded(replace(known, unfinished=noted))

        self._update(change)

    def _update(self, change: Callable[[dict[str, Secret]], None]) -> None:
        def change_all(entries: dict[str, Secret], keys: Sequence[str]) -> Sequence[str]:
            if not keys:
                raise VaultError("The vault has no key, so that no client can be kept.")
            change(entries)
            return keys

        update_secrets(self._place, change_all)


def _encoded(client: RegisteredClient) -> Secret:
    return Secret(json.dumps(asdict(client)), datetime.now(UTC))


def _decoded(secret: Secret | None) -> RegisteredClient | None:
    """Return a client; None for one that another version has written."""
    if secret is None:
        return None
    try:
        document: Mapping[str, Any] = json.loads(secret.value)
        return RegisteredClient(**{**document, "key": ClientKey(**document["key"])})
    except (ValueError, TypeError, KeyError):
        return None


def _is(secret: Secret, authority: str, client_id: str) -> bool:
    client = _decoded(secret)
    return client is not None and (client.key.authority, client.id) == (authority, client_id)

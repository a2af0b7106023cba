"""Tokens of remote servers, sealed: a folder beside the vault with one file for each of them.

Each file is encrypted like the vault and with its key. All workers of a machine use the same
folder, and a lock for each file: whoever holds it is the only one that requests a token, so that a
refresh token that may be spent once is spent once (design.md#tokens-for-remote-servers).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from leaseway.vault.clients import ClientStore
from leaseway.vault.file import LOGIN_SUFFIX, read_vault, set_secret
from leaseway.vault.key import VaultError, VaultPlace, read_keys
from leaseway.vault.private_file import PrivateFileError, locked, read_private, write_private
from leaseway.wire.file_stamp import FileStamp, file_stamp

MAX_LOGINS: Final = 10_000
_ENTRY: Final = "login"
_VERSION: Final = 1
_MAX_NOTE: Final = 200


@dataclass(frozen=True)
class LoginKey:
    """What a token is for. Everything that makes another token counts.

    Attributes:
        url: The server's address.
        tenant: Whose login it is; empty for the service's own token.
        user: Which user's of the tenant; empty for the tenant's own login.
        client: The configured client id, or empty.
        issuer: The configured authorization server, or empty.
        resource: The configured resource indicator, or empty.
        configured_at: The configured address of the authorization server's metadata, or of its
            token endpoint, or empty.
    """

    server: str
    url: str
    tenant: str = ""
    client: str = ""
    issuer: str = ""
    resource: str = ""
    user: str = ""
    configured_at: str = ""

    @property
    def file_name(self) -> str:
        """The name of its file, without the suffix."""
        parts = asdict(self)
        for later in ("user", "configured_at"):
            if not parts[later]:
                del parts[later]  # names of files without it stay what they were
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]
        return f"{self.server}.{digest}"


@dataclass(frozen=True)
class Login:
    """The tokens of one key. Its representation shows none.

    Attributes:
        issuer: Who issued the tokens.
        scope: The granted scopes.
        access_token: Empty if there is none.
        obtained_at: When it was obtained, in seconds since 1970.
        expires_at: When it expires, in seconds since 1970; None if that is not known.
        refresh_token: Empty if there is none.
        granted_at: When a person logged in, in seconds since 1970; 0 for the service's own token.
        ended: Why nobody is logged in any more, or empty.
        metadata: What was discovered at the login: endpoints, and a registered client.
    """

    key: LoginKey
    issuer: str = ""
    scope: str = ""
    access_token: str = field(default="", repr=False)
    obtained_at: float = 0.0
    expires_at: float | None = None
    refresh_token: str = field(default="", repr=False)
    granted_at: float = 0.0
    ended: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def ended_by(self, cause: str) -> Login:
        """Return the login without its tokens."""
        return replace(self, access_token="", refresh_token="", expires_at=None, ended=cause)


class LoginStore:
    """The sealed logins beside a vault. Its methods block.

    Attributes:
        clients: The clients that were registered for logins.
    """

    def __init__(self, place: VaultPlace) -> None:
        self.clients = ClientStore(place)
        self._place = place
        self._folder = place.logins

    @property
    def has_key(self) -> bool:
        """Whether the vault has a key, so that something can be sealed.

        Raises:
            VaultError: The key is unusable.
        """
        return bool(read_keys(self._place))

    @contextlib.contextmanager
    def exclusive(self, key: LoginKey, timeout: float) -> Iterator[None]:
        """Be the only process that requests a token.

        Raises:
            VaultError: Another process has not finished in time.
        """
        try:
            with locked(self._folder / f"{key.file_name}.request", timeout):
                yield
        except PrivateFileError as error:
            raise VaultError(f"The login of the server {key.server}: {error}") from None

    def read(self, key: LoginKey) -> Login | None:
        """Return a login, or None.

        Raises:
            VaultError: It cannot be read.
        """
        return self._read(self._path(key))

    def stamp(self, key: LoginKey) -> FileStamp:
        """Return what differs once a login has been written again, or ended."""
        return file_stamp(self._path(key))

    def write(self, login: Login) -> bool:
        """Replace a login; return whether this created the key file, for the first secret.

        Raises:
            VaultError: It cannot be written; the old one is unchanged.
        """
        path = self._path(login.key)
        if not path.exists() and len(self._paths()) >= MAX_LOGINS:
            raise VaultError(f"The folder {self._folder} has {MAX_LOGINS} logins; remove some.")
        document = {"version": _VERSION, **asdict(login)}
        return set_secret(self._at(path), _ENTRY, json.dumps(document))

    def begin_spending(self, login: Login) -> None:
        """Note that the refresh token of a login is being spent, until `end_spending`.

        Raises:
            VaultError: It cannot be noted.
        """
        try:
            write_private(self._note(login.key), _version_of(login))
        except PrivateFileError as error:
            raise VaultError(f"The login of the server {login.key.server}: {error}") from None

    def is_spending(self, login: Login) -> bool:
        """Return whether somebody began to spend the refresh token of a login, and has not ended.

        Raises:
            VaultError: That cannot be read.
        """
        try:
            return read_private(self._note(login.key), _MAX_NOTE) == _version_of(login)
        except PrivateFileError as error:
            raise VaultError(f"The login of the server {login.key.server}: {error}") from None

    def end_spending(self, key: LoginKey) -> None:
        """Forget what `begin_spending` has noted; a note about an earlier token means nothing."""
        with contextlib.suppress(OSError):
            self._note(key).unlink(missing_ok=True)

    def remove(self, key: LoginKey) -> None:
        """Remove a login, if there is one."""
        self.end_spending(key)
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:
            raise VaultError(f"The login cannot be removed: {error.strerror}.") from None

    def all(self, server: str = "*") -> tuple[Sequence[Login], Sequence[str]]:
        """Return all logins, by server and subject, and a sentence for each that is unreadable.

        Args:
            server: Of this server only.
        """
        logins, faults = [], []
        for path in self._paths(server):
            try:
                login = self._read(path)
            except VaultError as error:
                faults.append(str(error))
                continue
            if login is not None:
                logins.append(login)
        return sorted(logins, key=_by_subject), faults

    def _paths(self, server: str = "*") -> list[Path]:
        try:
            return sorted(self._folder.glob(f"{server}.*{LOGIN_SUFFIX}"))
        except OSError:
            return []

    def _path(self, key: LoginKey) -> Path:
        return self._folder / f"{key.file_name}{LOGIN_SUFFIX}"

    def _note(self, key: LoginKey) -> Path:
        return self._folder / f".{key.file_name}.spending"

    def _at(self, path: Path) -> VaultPlace:
        return replace(self._place, path=path)

    def _read(self, path: Path) -> Login | None:
        if not path.exists():
            return None
        entries = read_vault(self._at(path))
        if _ENTRY not in entries:
            return None
        try:
            document = json.loads(entries[_ENTRY].value)
            if document.pop("version") != _VERSION:
                raise ValueError
            return Login(**{**document, "key": LoginKey(**document["key"])})
        except (ValueError, TypeError, KeyError):
            raise VaultError(
                f"The login {path} was written by another version of Leaseway: log in again."
            ) from None


def _version_of(login: Login) -> bytes:
    """Return what differs once a login has other tokens; it contains none of them."""
    return f"{login.granted_at!r} {login.obtained_at!r}".encode()


def _by_subject(login: Login) -> tuple[str, str, str]:
    return login.key.server, login.key.tenant, login.key.user

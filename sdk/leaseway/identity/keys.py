"""API keys, and the file with their salted hashes.

A key is `lwk_ID_SECRET`. The id finds the record and may be shown. The secret has 256 random bits,
so a fast salted hash is enough, and a check costs microseconds. The file never contains the secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from leaseway.identity.principal import (
    SYSTEM_ROLES,
    Principal,
    Role,
    check_name,
    check_user,
    parse_roles,
)
from leaseway.vault.private_file import PrivateFileError, locked, write_private
from leaseway.wire import bounds
from leaseway.wire.names import nearest
from leaseway.wire.secrets.trusted_files import UntrustedFile, read_trusted

PREFIX: Final = "lwk_"
MAX_KEYS: Final = 10_000
"""Keys in one file, including revoked ones."""
MAX_KEY_FILE: Final = 16 * bounds.MIB
DEFAULT_KEY_FILE: Final = "~/.leaseway/keys.json"
KEYS_VARIABLE: Final = "LEASEWAY_KEYS"

_ID_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"  # without similar characters
_ID_LENGTH: Final = 8
_MAX_KEY_LENGTH: Final = 256
_MAX_NOTE: Final = 200
_VERSION: Final = 1
_MEMBERS: Final = (
    "id",
    "roles",
    "tenant",
    "agent",
    "user",
    "salt",
    "hash",
    "created_at",
    "expires_at",
    "revoked_at",
    "note",
)
"""The members of a record in the file."""
_NO_SALT: Final = bytes(16)


class KeyFileError(Exception):
    """The key file cannot be used; the message contains no secret."""


@dataclass(frozen=True)
class KeyRecord:
    """The stored record of one key.

    Attributes:
        id: Its id; not secret.
        salt: The salt of its hash.
        digest: SHA-256 of the salt and the secret.
        tenant: Its tenant, or None.
        agent: Its agent, or None.
        user: Its user, or None.
        created_at: When it was created, ISO 8601.
        expires_at: When it expires, in seconds since 1970, or None for never.
        revoked_at: When it was revoked, ISO 8601, or empty.
        note: A free text about its use.
    """

    id: str
    salt: bytes
    digest: bytes
    roles: frozenset[Role]
    tenant: str | None = None
    agent: str | None = None
    created_at: str = ""
    expires_at: float | None = None
    revoked_at: str = ""
    note: str = ""
    user: str | None = None

    @property
    def name(self) -> str:
        """Its name in logs and the audit."""
        return f"key {self.id}"

    def state(self, now: float) -> str:
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


KeyRecords = Mapping[str, KeyRecord]
"""Records by id, in order of creation."""


def is_api_key(credential: str) -> bool:
    """Return whether a credential has the form of an API key."""
    return credential.startswith(PREFIX)


def make_key(
    *,
    roles: Iterable[Role],
    tenant: str | None,
    agent: str | None,
    now: float,
    expires_at: float | None = None,
    note: str = "",
    user: str | None = None,
) -> tuple[str, KeyRecord]:
    """Create a key; return it, which cannot be shown again, and its record.

    Raises:
        ValueError: The tenant, agent, user or note is invalid, or does not fit the roles.
    """
    roles = frozenset(roles)
    if not roles:
        raise ValueError("A key needs a role.")
    if tenant is None and Role.CALLER in roles:
        raise ValueError("A key of the role caller needs a tenant: add --tenant.")
    if tenant is not None and roles & SYSTEM_ROLES:
        message = "A key of the role operator, viewer or plane has no tenant: omit --tenant."
        raise ValueError(message)
    if tenant is not None:
        check_name("tenant", tenant)
    if agent is not None:
        check_name("agent", agent)
    if user is not None:
        check_name("user", user)
    check_user(roles, tenant, user)
    if len(note) > _MAX_NOTE:
        raise ValueError(f"A note has at most {_MAX_NOTE} characters.")
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
    secret = secrets.token_urlsafe(32)
    salt = secrets.token_bytes(16)
    created = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    record = KeyRecord(
        id=key_id,
        salt=salt,
        digest=_digest(salt, secret),
        roles=roles,
        tenant=tenant,
        agent=agent,
        created_at=created,
        expires_at=expires_at,
        note=note,
        user=user,
    )
    return f"{PREFIX}{key_id}_{secret}", record


def principal_for_key(keys: KeyRecords, credential: str, now: float) -> Principal | None:
    """Return the principal of a valid key, or None.

    An unknown id takes as long as a wrong secret.
    """
    record = genuine_record(keys, credential)
    if record is None or record.state(now) != "active":
        return None
    return Principal(
        name=record.name,
        roles=record.roles,
        tenant=record.tenant,
        agent=record.agent,
        expires_at=record.expires_at,
        user=record.user,
    )


def genuine_record(keys: KeyRecords, credential: str) -> KeyRecord | None:
    """Return the record of a key whose secret is right, valid or not; None for any other."""
    if len(credential) > _MAX_KEY_LENGTH:
        return None
    key_id, _, secret = credential.removeprefix(PREFIX).partition("_")
    record = keys.get(key_id)
    digest = _digest(record.salt if record is not None else _NO_SALT, secret)
    matches = hmac.compare_digest(digest, record.digest if record is not None else _NO_SALT * 2)
    return record if matches else None


def read_key_file(path: Path) -> KeyRecords:
    """Return the keys in a file, or no keys if the file does not exist.

    Raises:
        KeyFileError: It cannot be read, other users can change it, or it is no key file.
    """
    try:
        content = read_trusted(path, MAX_KEY_FILE)
    except FileNotFoundError:
        return {}
    except UntrustedFile as error:
        raise KeyFileError(str(error)) from None
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > MAX_KEY_FILE:
        raise KeyFileError(f"{path} is larger than {MAX_KEY_FILE} bytes; it is no key file.")
    return parse_keys(content, str(path))


def parse_keys(content: bytes, path: str) -> KeyRecords:
    """Return the keys in the content of a file.

    Raises:
        KeyFileError: It is no key file; the message names the invalid entry.
    """
    try:
        document = json.loads(content)
        entries = document["keys"]
        version = document["version"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise KeyFileError(f"{path} is no key file; `leaseway key create` makes one.") from None
    if version != _VERSION or not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise KeyFileError(
            f"{path} has version {str(version)[:16]} or more than {MAX_KEYS} keys; this release "
            f"reads version {_VERSION}."
        )
    keys: dict[str, KeyRecord] = {}
    for number, entry in enumerate(entries, start=1):
        try:
            record = _record(entry)
        except _UnknownMember as error:
            raise KeyFileError(f"Entry {number} of {path} {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            raise KeyFileError(f"Entry {number} of {path} is no valid key record.") from None
        keys[record.id] = record
    return keys


def add_key(path: Path, record: KeyRecord) -> None:
    """Add a record to a file; create the file if it does not exist.

    Raises:
        KeyFileError: It cannot be read or written, or is full.
    """
    with _edited_keys(path) as keys:
        if len(keys) >= MAX_KEYS:
            raise KeyFileError(
                f"{path} has reached the limit of {MAX_KEYS} keys. Remove some: "
                "leaseway key revoke --forget ID"
            )
        keys[record.id] = record


def revoke_key(path: Path, key_id: str, now: float, *, forget: bool = False) -> None:
    """Revoke a key; with `forget`, remove its record.

    Raises:
        KeyFileError: The file cannot be read or written, or has no such key.
    """
    with _edited_keys(path) as keys:
        record = keys.get(key_id)
        if record is None:
            raise KeyFileError(f"{path} has no key {key_id[:64]}. See: leaseway key list")
        if forget:
            del keys[key_id]
        elif not record.revoked_at:
            moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
            keys[key_id] = replace(record, revoked_at=moment)


@contextlib.contextmanager
def _edited_keys(path: Path) -> Iterator[dict[str, KeyRecord]]:
    """Lock a file, yield its keys, and write them if the block succeeds."""
    try:
        with locked(path):
            keys = dict(read_key_file(path))
            yield keys
            document = {"version": _VERSION, "keys": [_entry(record) for record in keys.values()]}
            content = json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
            write_private(path, content)
    except PrivateFileError as error:
        raise KeyFileError(str(error)) from None


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode(errors="replace")).digest()


class _UnknownMember(Exception):
    """A record has a member that is not known; the text completes "Entry 1 of PATH "."""


def _record(entry: Mapping[str, Any]) -> KeyRecord:
    for name in entry:  # a misspelt `expires_at` or `revoked_at` must not let a key live on
        if name not in _MEMBERS:
            near = nearest(name[:64], _MEMBERS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise _UnknownMember(f"has '{name[:64]}', which no key has.{hint}")
    expires = entry.get("expires_at")
    record = KeyRecord(
        id=_text(entry["id"]),
        salt=bytes.fromhex(entry["salt"]),
        digest=bytes.fromhex(entry["hash"]),
        roles=parse_roles(entry["roles"]),
        tenant=_optional(entry.get("tenant")),
        agent=_optional(entry.get("agent")),
        created_at=_text(entry.get("created_at", "")),
        expires_at=None if expires is None else float(expires),
        revoked_at=_text(entry.get("revoked_at", "")),
        note=_text(entry.get("note", "")),
        user=_optional(entry.get("user")),
    )
    check_user(record.roles, record.tenant, record.user)
    if not record.roles or not record.id or len(record.digest) != hashlib.sha256().digest_size:
        raise ValueError(record.id)
    return record


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value))
    return value


def _optional(value: object) -> str | None:
    """Return a tenant, agent or user; the authenticator refuses the key if it may not be one."""
    return None if value is None else check_name("name", _text(value))


def _entry(record: KeyRecord) -> dict[str, object]:
    entry: dict[str, object] = {
        "id": record.id,
        "roles": sorted(record.roles),
        "tenant": record.tenant,
        "agent": record.agent,
        "user": record.user,
        "salt": record.salt.hex(),
        "hash": record.digest.hex(),
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
        "note": record.note,
    }
    return {name: value for name, value in entry.items() if value not in (None, "")}

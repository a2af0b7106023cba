"""API keys: what one looks like, and the file that holds their salted hashes.

A key is `lwk_ID_SECRET`. The id finds the record and may be shown; the secret has 256 bits from
the system's random source, so a fast hash with a salt of its own is enough, and checking one costs
microseconds. The file never holds the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from leaseway.identity.principal import SEES_ALL, Principal, Role, check_name, parse_roles
from leaseway.vault.private_file import PrivateFileError, locked, write_private
from leaseway.wire import bounds

PREFIX: Final = "lwk_"
MAX_KEYS: Final = 10_000
"""Keys that one file may hold, revoked ones too."""
MAX_KEY_FILE: Final = 16 * bounds.MIB
DEFAULT_KEY_FILE: Final = "~/.leaseway/keys.json"
KEYS_VARIABLE: Final = "LEASEWAY_KEYS"

_ID_ALPHABET: Final = "abcdefghijkmnpqrstuvwxyz23456789"  # none that a person mixes up
_ID_LENGTH: Final = 8
_LONGEST_KEY: Final = 256
_LONGEST_NOTE: Final = 200
_VERSION: Final = 1
_NO_SALT: Final = bytes(16)


class KeyFileError(Exception):
    """The file of keys cannot be used; the text is a sentence, and holds no secret."""


@dataclass(frozen=True)
class KeyRecord:
    """What the file says of one key.

    Attributes:
        id: Names it; not secret.
        salt: Of its hash.
        digest: SHA-256 of the salt and the secret.
        roles: What it may ask for.
        tenant: Whose it is, or None for no tenant in particular.
        agent: Which agent of the tenant it is, or None.
        created_at: When it was made, ISO 8601.
        expires_at: When it ends, in seconds since 1970, or None for never.
        revoked_at: When it was revoked, ISO 8601; empty while it is good.
        note: What it is for, in its maker's words.
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

    def state(self, now: float) -> str:
        if self.revoked_at:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


Keys = Mapping[str, KeyRecord]
"""Records by id, in the order in which they were made."""


def is_api_key(credential: str) -> bool:
    """Return whether a credential is one of these keys, good or not."""
    return credential.startswith(PREFIX)


def make_key(
    *,
    roles: Iterable[Role],
    tenant: str | None,
    agent: str | None,
    now: float,
    expires_at: float | None = None,
    note: str = "",
) -> tuple[str, KeyRecord]:
    """Return a new key, which nobody can show again, and its record.

    Raises:
        ValueError: The tenant, the agent or the note cannot be one, or the roles do not fit.
    """
    kept = frozenset(roles)
    if not kept:
        raise ValueError("A key needs a role.")
    if tenant is None and Role.CALLER in kept:
        raise ValueError("A key of the role caller needs a tenant: add --tenant.")
    if tenant is not None and kept & {*SEES_ALL, Role.PLANE}:
        message = "A key of the role operator, viewer or plane is of no tenant: leave it out."
        raise ValueError(message)
    if tenant is not None:
        check_name("tenant", tenant)
    if agent is not None:
        check_name("agent", agent)
    if len(note) > _LONGEST_NOTE:
        raise ValueError(f"A note has at most {_LONGEST_NOTE} characters.")
    key_id = "".join(secrets.choice(_ID_ALPHABET) for _ in range(_ID_LENGTH))
    secret = secrets.token_urlsafe(32)
    salt = secrets.token_bytes(16)
    created = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    record = KeyRecord(
        key_id, salt, _digest(salt, secret), kept, tenant, agent, created, expires_at, note=note
    )
    return f"{PREFIX}{key_id}_{secret}", record


def check_key(keys: Keys, credential: str, now: float) -> Principal | None:
    """Return whose key this is, or None where it is not, or no longer, good.

    An id that is not there costs the same as a wrong secret.
    """
    if len(credential) > _LONGEST_KEY:
        return None
    key_id, _, secret = credential.removeprefix(PREFIX).partition("_")
    record = keys.get(key_id)
    digest = _digest(record.salt if record is not None else _NO_SALT, secret)
    good = hmac.compare_digest(digest, record.digest if record is not None else _NO_SALT * 2)
    if record is None or not good or record.state(now) != "active":
        return None
    return Principal(f"key {key_id}", record.roles, record.tenant, record.agent, record.expires_at)


def read_key_file(path: Path) -> Keys:
    """Return the keys of a file; none where there is no file.

    Raises:
        KeyFileError: It cannot be read, or is no file of keys.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_KEY_FILE + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > MAX_KEY_FILE:
        raise KeyFileError(f"{path} is larger than {MAX_KEY_FILE} bytes; it is not one of ours.")
    return parse_keys(content, str(path))


def parse_keys(content: bytes, where: str) -> Keys:
    """Return the keys that a file's content holds.

    Raises:
        KeyFileError: It is no file of keys; the message says where it breaks.
    """
    try:
        document = json.loads(content)
        entries = document["keys"]
        version = document["version"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise KeyFileError(
            f"{where} is no file of keys; `leaseway key create` makes one."
        ) from None
    if version != _VERSION or not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise KeyFileError(
            f"{where} is of version {str(version)[:16]} or holds more than {MAX_KEYS} keys; this "
            f"release reads version {_VERSION}."
        )
    keys: dict[str, KeyRecord] = {}
    for number, entry in enumerate(entries, start=1):
        try:
            record = _record(entry)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise KeyFileError(f"Entry {number} of {where} is no record of a key.") from None
        keys[record.id] = record
    return keys


def add_key(path: Path, record: KeyRecord) -> None:
    """Add a record to a file, which is made where there is none.

    Raises:
        KeyFileError: It cannot be read or written, or is full.
    """
    with _writing(path) as keys:
        if len(keys) >= MAX_KEYS:
            raise KeyFileError(
                f"{path} holds {MAX_KEYS} keys, the most that it may. Revoke and remove some: "
                "leaseway key revoke --forget ID"
            )
        keys[record.id] = record


def revoke_key(path: Path, key_id: str, now: float, *, forget: bool = False) -> None:
    """Revoke a key; with `forget`, its record goes as well.

    Raises:
        KeyFileError: The file cannot be read or written, or has no such key.
    """
    with _writing(path) as keys:
        record = keys.get(key_id)
        if record is None:
            raise KeyFileError(f"{path} has no key {key_id[:64]}. See: leaseway key list")
        if forget:
            del keys[key_id]
        elif not record.revoked_at:
            moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
            keys[key_id] = replace(record, revoked_at=moment)


class _writing:  # noqa: N801 - read as a verb: with _writing(path) as keys
    """Hold a file's lock, give its keys, and write them if the block succeeds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = locked(path)

    def __enter__(self) -> dict[str, KeyRecord]:
        try:
            self._lock.__enter__()
        except PrivateFileError as error:
            raise KeyFileError(str(error)) from None
        try:
            self._keys = dict(read_key_file(self._path))
        except BaseException:
            self._lock.__exit__(None, None, None)
            raise
        return self._keys

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                entries = [_entry(record) for record in self._keys.values()]
                document = {"version": _VERSION, "keys": entries}
                content = json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"
                write_private(self._path, content)
        except PrivateFileError as failure:
            raise KeyFileError(str(failure)) from None
        finally:
            self._lock.__exit__(None, None, None)


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode(errors="replace")).digest()


def _record(entry: Mapping[str, Any]) -> KeyRecord:
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
    )
    if not record.roles or not record.id or len(record.digest) != hashlib.sha256().digest_size:
        raise ValueError(record.id)
    return record


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(type(value))
    return value


def _optional(value: object) -> str | None:
    return None if value is None else check_name("name", _text(value))


def _entry(record: KeyRecord) -> dict[str, object]:
    entry: dict[str, object] = {
        "id": record.id,
        "roles": sorted(record.roles),
        "tenant": record.tenant,
        "agent": record.agent,
        "salt": record.salt.hex(),
        "hash": record.digest.hex(),
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "revoked_at": record.revoked_at,
        "note": record.note,
    }
    return {name: value for name, value in entry.items() if value not in (None, "")}

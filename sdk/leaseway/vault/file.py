"""The encrypted vault: named secrets in one file (DESIGN §2).

The file is a header (magic with its version, a salt), a nonce and AES-256-GCM over a JSON document,
with the header authenticated too: no byte can change unnoticed. The key comes from a passphrase
by scrypt. `cryptography` is imported when a vault is read or written, so that importing this needs
nothing that the SDK has not.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leaseway.vault.key import (
    VAULT_KEY_VARIABLE,
    VaultError,
    VaultPlace,
    check_key,
    new_key,
    read_keys,
    write_keys,
)
from leaseway.vault.private_file import PrivateFileError, locked, read_private, write_private
from leaseway.wire.names import SECRET_NAME, SECRET_NAME_RULE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAX_VALUE: Final = 64 << 10
"""Bytes of one secret."""
MAX_ENTRIES: Final = 10_000
MAX_VAULT: Final = 64 << 20
"""Bytes of the file."""

_KIND: Final = b"leaseway-vault "
_MAGIC: Final = _KIND + b"1\n"
_SALT: Final = 16
_NONCE: Final = 12
_HEADER: Final = len(_MAGIC) + _SALT
# Version 1 means these costs: read from the file they would be an attacker's to choose.
_SCRYPT: Final = {"length": 32, "n": 2**15, "r": 8, "p": 1}


@dataclass(frozen=True)
class Secret:
    """One secret. Its representation does not show it.

    Attributes:
        value: The secret.
        set_at: When it was set.
    """

    value: str = field(repr=False)
    set_at: datetime


def check_name(name: str) -> None:
    """Refuse what cannot be a secret's name.

    Raises:
        VaultError: It is none.
    """
    if not SECRET_NAME.fullmatch(name):
        raise VaultError(f"'{name[:128]}' is no name for a secret: use {SECRET_NAME_RULE}.")


def check_value(name: str, value: str) -> None:
    """Refuse what cannot be a secret.

    Raises:
        VaultError: It is empty, too long, or holds what no environment variable can.
    """
    if not value:
        raise VaultError(f"The value of {name} is empty; to remove it: leaseway vault rm {name}")
    if len(value.encode()) > MAX_VALUE:
        raise VaultError(f"The value of {name} has more than {MAX_VALUE} bytes.")
    if "\0" in value:
        raise VaultError(f"The value of {name} holds a zero byte, which no server can be given.")


def read_vault(place: VaultPlace) -> Mapping[str, Secret]:
    """Return every secret by name; none where there is no vault.

    Raises:
        VaultError: The vault or its key cannot be used.
    """
    content = _read_file(place.path)
    return {} if content is None else _open(content, read_keys(place), place)


def set_secret(place: VaultPlace, name: str, value: str) -> bool:
    """Set a secret; say whether a key file had to be made for the vault's first one.

    Raises:
        VaultError: The vault stays as it was.
    """
    check_name(name)
    check_value(name, value)
    made: list[bool] = []

    def change(entries: dict[str, Secret], keys: Sequence[str]) -> Sequence[str]:
        if name not in entries and len(entries) >= MAX_ENTRIES:
            raise VaultError(f"The vault {place.path} holds {MAX_ENTRIES} secrets; remove some.")
        entries[name] = Secret(value, datetime.now(UTC))
        if not keys:
            keys = (new_key(),)
            write_keys(place.key_file, keys)
            made.append(True)
        return keys

    _update(place, change)
    return bool(made)


def remove_secret(place: VaultPlace, name: str) -> None:
    """Remove a secret.

    Raises:
        VaultError: There is none of that name, or the vault cannot be used.
    """

    def change(entries: dict[str, Secret], keys: Sequence[str]) -> Sequence[str]:
        if entries.pop(name, None) is None:
            raise VaultError(f"The vault {place.path} has no secret '{name[:128]}'.")
        return keys

    _update(place, change)


def rotate_vault(place: VaultPlace, key: str, key_file: Path | None) -> None:
    """Encrypt a vault with a new key.

    Args:
        place: The vault, with what opens it now.
        key: The new key.
        key_file: Where the new key is kept, or None where it is not kept in a file. While the
            vault is written the file holds the old key too, so that nothing is ever locked out.

    Raises:
        VaultError: The vault still opens with what opened it before.
    """
    check_key(key, "the new key")
    with _locked(place):
        content = _read_file(place.path)
        if content is None:
            raise VaultError(f"There is no vault {place.path}; nothing to rotate.")
        keys = read_keys(place)
        entries = _open(content, keys, place)
        if key_file is not None:
            write_keys(key_file, (key, *keys))
        write_private(place.path, _seal(entries, key, place))
        if key_file is not None:
            write_keys(key_file, (key,))


Change = Callable[[dict[str, Secret], Sequence[str]], Sequence[str]]
"""Changes the entries; given the keys that there are, returns those to write with."""


def _update(place: VaultPlace, change: Change) -> None:
    with _locked(place):
        content = _read_file(place.path)
        keys = read_keys(place)
        entries = {} if content is None else dict(_open(content, keys, place))
        used = change(entries, keys)
        write_private(place.path, _seal(entries, used[0], place))


@contextlib.contextmanager
def _locked(place: VaultPlace) -> Iterator[None]:
    try:
        with locked(place.path):
            yield
    except PrivateFileError as error:
        raise VaultError(f"The vault {error}") from None


def _read_file(path: Path) -> bytes | None:
    try:
        return read_private(path, MAX_VAULT)
    except PrivateFileError as error:
        raise VaultError(f"The vault {error}") from None


def _seal(entries: Mapping[str, Secret], key: str, place: VaultPlace) -> bytes:
    document = {
        name: {"value": entry.value, "set_at": entry.set_at.isoformat()}
        for name, entry in sorted(entries.items())
    }
    header, nonce = _MAGIC + os.urandom(_SALT), os.urandom(_NONCE)
    sealed = _cipher(key, header).encrypt(nonce, json.dumps(document).encode(), header)
    content = header + nonce + sealed
    if len(content) > MAX_VAULT:
        raise VaultError(f"The vault {place.path} would have more than {MAX_VAULT} bytes.")
    return content


def _open(content: bytes, keys: Sequence[str], place: VaultPlace) -> Mapping[str, Secret]:
    if not content.startswith(_MAGIC):
        newer = content.startswith(_KIND)
        why = "was written by another version of Leaseway" if newer else "is no vault, or damaged"
        raise VaultError(f"The file {place.path} {why}; it is left as it is.")
    if not keys:
        raise VaultError(
            f"The vault {place.path} has no key here: set {VAULT_KEY_VARIABLE}, or name the key "
            f"file that it was made with by --vault-key-file (there is no {place.key_file})."
        )
    from cryptography.exceptions import InvalidTag

    header, nonce = content[:_HEADER], content[_HEADER : _HEADER + _NONCE]
    for key in keys:
        try:
            opened = _cipher(key, header).decrypt(nonce, content[_HEADER + _NONCE :], header)
        except (InvalidTag, ValueError):  # ValueError: cut off within the nonce
            continue
        return _entries(opened)
    where = VAULT_KEY_VARIABLE if place.passphrase is not None else place.key_file
    raise VaultError(
        f"The vault {place.path} does not open with the key of {where}: it was written with "
        "another key, or it is damaged. Give the right key, or restore the file from a backup."
    )


def _entries(opened: bytes) -> Mapping[str, Secret]:
    document = json.loads(opened)
    return {
        name: Secret(entry["value"], datetime.fromisoformat(entry["set_at"]))
        for name, entry in document.items()
    }


def _cipher(key: str, header: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return AESGCM(Scrypt(salt=header[len(_MAGIC) :], **_SCRYPT).derive(key.encode()))

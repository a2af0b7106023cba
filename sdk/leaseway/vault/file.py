"""The encrypted vault: named secrets in one file (design.md#configuration).

The file is a header (magic with its version, a salt), a nonce and AES-256-GCM over a JSON document.
The header is authenticated too, so every changed byte is detected. scrypt derives the key from a
passphrase. `cryptography` is imported when a vault is read or written.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
"""Maximum size of one secret in bytes."""
MAX_ENTRIES: Final = 10_000
MAX_VAULT: Final = 64 << 20
"""Maximum size of the file in bytes."""
LOGIN_SUFFIX: Final = ".login"
"""Of the files in `VaultPlace.logins`, which have the vault's format and key."""

_KIND: Final = b"leaseway-vault "
_MAGIC: Final = _KIND + b"1\n"
_SALT: Final = 16
_NONCE: Final = 12
_HEADER: Final = len(_MAGIC) + _SALT
# Version 1 has these costs. If the file contained them, an attacker could choose them.
_SCRYPT: Final = {"length": 32, "n": 2**15, "r": 8, "p": 1}


@dataclass(frozen=True)
class Secret:
    """A secret value, which its repr does not show, and when it was set."""

    value: str = field(repr=False)
    set_at: datetime


def check_name(name: str) -> None:
    """Check the name of a secret.

    Raises:
        VaultError: It is invalid.
    """
    if not SECRET_NAME.fullmatch(name):
        raise VaultError(f"'{name[:128]}' is not a valid secret name: use {SECRET_NAME_RULE}.")


def check_value(name: str, value: str) -> None:
    """Check the value of a secret.

    Raises:
        VaultError: It is empty, too long, or contains a zero byte.
    """
    if not value:
        raise VaultError(f"The value of {name} is empty; to remove it: leaseway vault rm {name}")
    if len(value.encode()) > MAX_VALUE:
        raise VaultError(f"The value of {name} has more than {MAX_VALUE} bytes.")
    if "\0" in value:
        raise VaultError(f"The value of {name} contains a zero byte; remove it.")


def read_vault(place: VaultPlace) -> Mapping[str, Secret]:
    """Return all secrets by name; empty if there is no vault.

    Raises:
        VaultError: The vault or its key is unusable.
    """
    content = _read_file(place.path)
    return {} if content is None else _open(content, read_keys(place), place)


def set_secret(place: VaultPlace, name: str, value: str) -> bool:
    """Set a secret; return whether this created the key file, for the vault's first secret.

    Raises:
        VaultError: The vault is unchanged.
    """
    check_name(name)
    check_value(name, value)
    has_new_key = False

    def change(entries: dict[str, Secret], keys: Sequence[str]) -> Sequence[str]:
        nonlocal has_new_key
        if name not in entries and len(entries) >= MAX_ENTRIES:
            raise VaultError(f"The vault {place.path} has {MAX_ENTRIES} secrets; remove some.")
        entries[name] = Secret(value, datetime.now(UTC))
        if not keys:
            keys = (new_key(),)
            write_keys(place.key_file, keys)
            has_new_key = True
        return keys

    update_secrets(place, change)
    return has_new_key


def remove_secret(place: VaultPlace, name: str) -> None:
    """Remove a secret.

    Raises:
        VaultError: There is no such secret, or the vault is unusable.
    """

    def change(entries: dict[str, Secret], keys: Sequence[str]) -> Sequence[str]:
        if entries.pop(name, None) is None:
            raise VaultError(f"The vault {place.path} has no secret '{name[:128]}'.")
        return keys

    update_secrets(place, change)


def check_opens(place: VaultPlace) -> None:
    """Check that a vault opens with its key, or if there is none, a login beside it.

    Raises:
        VaultError: Nothing does, or there is nothing.
    """
    places = [place, *(replace(place, path=path) for path in _login_files(place))]
    contents = [(found, content) for found in places if (content := _read_file(found.path))]
    if not contents:
        raise VaultError(f"There is no vault {place.path}; nothing to rotate.")
    keys = read_keys(place)
    for at, (found, content) in enumerate(contents, start=1):
        try:
            _open(content, keys, found)
        except VaultError:
            # A login that no key opens is of no use; a vault that it does not open is another's.
            if found == place or at == len(contents):
                raise
        else:
            return


def rotate_vault(place: VaultPlace, key: str, key_file: Path | None) -> None:
    """Encrypt a vault, and the logins beside it, with a new key.

    Args:
        place: The vault with its current key.
        key_file: The file to store the new key in, or None for none. During the rotation the file
            also contains the old key, so that the vault is readable at any moment.

    Raises:
        VaultError: The vault still has its previous key.
    """
    check_key(key, "the new key")
    with _locked(place):
        check_opens(place)
        content, logins = _read_file(place.path), _login_files(place)
        keys = read_keys(place)
        entries = None if content is None else _open(content, keys, place)
        if key_file is not None:
            write_keys(key_file, (key, *keys))
        if entries is not None:
            write_private(place.path, _encrypt(entries, key, place))
        for path in logins:
            _rotate_login(replace(place, path=path), keys, key)
        if key_file is not None:
            write_keys(key_file, (key,))


def _login_files(place: VaultPlace) -> list[Path]:
    return sorted(place.logins.glob(f"*{LOGIN_SUFFIX}"))


def _rotate_login(place: VaultPlace, keys: Sequence[str], key: str) -> None:
    """Encrypt a login with a new key; one that no key opens stays as useless as it was."""
    with _locked(place):
        content = _read_file(place.path)
        if content is not None:
            with contextlib.suppress(VaultError):
                entries = _open(content, (*keys, key), place)
                write_private(place.path, _encrypt(entries, key, place))


Change = Callable[[dict[str, Secret], Sequence[str]], Sequence[str]]
"""Changes the entries and returns the keys to write with; it gets the current keys."""


def update_secrets(place: VaultPlace, change: Change) -> None:
    """Change the secrets of a vault.

    Raises:
        VaultError: The vault is unchanged.
    """
    with _locked(place):
        content = _read_file(place.path)
        keys = read_keys(place)
        entries = {} if content is None else dict(_open(content, keys, place))
        new_keys = change(entries, keys)
        write_private(place.path, _encrypt(entries, new_keys[0], place))


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


def _encrypt(entries: Mapping[str, Secret], key: str, place: VaultPlace) -> bytes:
    document = {
        name: {"value": entry.value, "set_at": entry.set_at.isoformat()}
        for name, entry in sorted(entries.items())
    }
    header, nonce = _MAGIC + _own_salt(key), os.urandom(_NONCE)
    encrypted = _cipher(key, header).encrypt(nonce, json.dumps(document).encode(), header)
    content = header + nonce + encrypted
    if len(content) > MAX_VAULT:
        raise VaultError(f"The vault {place.path} would have more than {MAX_VAULT} bytes.")
    return content


def _open(content: bytes, keys: Sequence[str], place: VaultPlace) -> Mapping[str, Secret]:
    if not content.startswith(_MAGIC):
        reason = "is damaged or not a vault"
        if content.startswith(_KIND):
            reason = "was written by another version of Leaseway"
        raise VaultError(f"The file {place.path} {reason}; it is not changed.")
    if not keys:
        raise VaultError(
            f"The vault {place.path} has no key here: set {VAULT_KEY_VARIABLE}, or name the key "
            f"file that it was made with by --vault-key-file (there is no {place.key_file})."
        )
    from cryptography.exceptions import InvalidTag

    header, nonce = content[:_HEADER], content[_HEADER : _HEADER + _NONCE]
    for key in keys:
        try:
            document = _cipher(key, header).decrypt(nonce, content[_HEADER + _NONCE :], header)
        except (InvalidTag, ValueError):  # ValueError: truncated within the nonce
            continue
        return _entries(document)
    where = VAULT_KEY_VARIABLE if place.passphrase is not None else place.key_file
    raise VaultError(
        f"The vault {place.path} does not open with the key of {where}: it was written with "
        "another key, or it is damaged. Give the right key, or restore the file from a backup."
    )


def _entries(document: bytes) -> Mapping[str, Secret]:
    return {
        name: Secret(entry["value"], datetime.fromisoformat(entry["set_at"]))
        for name, entry in json.loads(document).items()
    }


def _cipher(key: str, header: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(_derived(key, header[len(_MAGIC) :], **_SCRYPT))


# A derivation costs a tenth of a second on purpose, and a worker reads and writes a file for each
# token of each user. Files of one passphrase may share a salt: their nonces differ.
@functools.lru_cache(maxsize=16)
def _own_salt(key: str) -> bytes:
    """Return the salt of what this process writes with a passphrase."""
    return os.urandom(_SALT)


@functools.lru_cache(maxsize=1024)
def _derived(key: str, salt: bytes, **costs: int) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, **costs).derive(key.encode())

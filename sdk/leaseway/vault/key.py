"""The path and the key of a vault (design.md#configuration).

The key is a passphrase: LEASEWAY_VAULT_KEY if it is set, else the first line of the key file.
Further lines of the file are older keys that still work, so that a rotation may be interrupted at
any moment and does not disturb readers.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from leaseway.vault.private_file import PrivateFileError, read_private, write_private
from leaseway.wire.secrets.redaction import hide

VAULT_VARIABLE: Final = "LEASEWAY_VAULT"
VAULT_KEY_VARIABLE: Final = "LEASEWAY_VAULT_KEY"
VAULT_NEW_KEY_VARIABLE: Final = "LEASEWAY_VAULT_NEW_KEY"

MIN_KEY: Final = 16
"""Minimum length of a key in characters."""

_MAX_KEY: Final = 1024
_MAX_KEY_FILE: Final = 4096
_FOLDER: Final = "~/.leaseway"


class VaultError(Exception):
    """The vault or its key is unusable; the text is a sentence without secrets."""


@dataclass(frozen=True)
class VaultPlace:
    """The files of a vault and its key, which may be missing.

    Attributes:
        passphrase: The key, which overrides the key file. Never shown.
    """

    path: Path
    key_file: Path
    passphrase: str | None = field(default=None, repr=False)

    @property
    def logins(self) -> Path:
        """The folder of the logins that are sealed with its key; see `logins`."""
        return self.path.with_name(f"{self.path.name}.logins")


def find_vault(
    environment: Mapping[str, str], path: Path | None = None, key_file: Path | None = None
) -> VaultPlace:
    """Return the vault that a process uses.

    Args:
        environment: Its LEASEWAY_VAULT_KEY is the key, unless a key file is named.
        path: The vault, or None for LEASEWAY_VAULT, else ~/.leaseway/vault.encrypted.
        key_file: The key file, or None for ~/.leaseway/vault.key.

    Raises:
        VaultError: LEASEWAY_VAULT_KEY is not a valid key.
    """
    passphrase = environment.get(VAULT_KEY_VARIABLE) or None
    if key_file is not None:
        passphrase = None
    elif passphrase is not None:
        check_key(passphrase, VAULT_KEY_VARIABLE)
    folder = Path(_FOLDER).expanduser()
    vault = path or Path(environment.get(VAULT_VARIABLE) or folder / "vault.encrypted")
    return VaultPlace(vault.expanduser(), key_file or folder / "vault.key", passphrase)


def check_key(key: str, where: str) -> None:
    """Check that a key is long enough and fits on one line of a file.

    Raises:
        VaultError: It is invalid; the text does not contain it.
    """
    if len(key) < MIN_KEY:
        raise VaultError(
            f"The vault key of {where} has fewer than {MIN_KEY} characters. Make one with: "
            "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    if len(key) > _MAX_KEY or not key.isprintable() or key != key.strip():
        raise VaultError(
            f"The vault key of {where} must be one line of at most {_MAX_KEY} printable "
            "characters, without spaces at its ends."
        )


def new_key() -> str:
    return secrets.token_urlsafe(32)


def read_keys(place: VaultPlace) -> Sequence[str]:
    """Return the keys of a vault, the one to write with first; empty if there is none.

    Log lines of this process never show them.

    Raises:
        VaultError: The key file is unusable.
    """
    if place.passphrase is not None:
        hide((place.passphrase,), VAULT_KEY_VARIABLE)
        return (place.passphrase,)
    try:
        content = read_private(place.key_file, _MAX_KEY_FILE)
        text = (content or b"").decode()
    except PrivateFileError as error:
        raise VaultError(f"The vault's key file {error}") from None
    except UnicodeDecodeError:
        raise VaultError(f"The vault's key file {place.key_file} is not text.") from None
    if content is None:
        return ()
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise VaultError(f"The vault's key file {place.key_file} is empty.")
    for key in keys:
        check_key(key, os.fspath(place.key_file))
    hide(keys, os.fspath(place.key_file))
    return keys


def write_keys(path: Path, keys: Sequence[str]) -> None:
    """Write a key file, the key to write with first.

    Raises:
        VaultError: It cannot be written.
    """
    try:
        write_private(path, "".join(f"{key}\n" for key in keys).encode())
    except PrivateFileError as error:
        raise VaultError(f"The vault's key file {error}") from None

"""`leaseway vault`: the encrypted file of secrets for `{secret: NAME}`."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from leaseway.cli.errors import USAGE, as_failure
from leaseway.cli.options.common import examples, json_option
from leaseway.cli.options.vault import vault_option
from leaseway.cli.output.tables import print_json, print_table, say
from leaseway.vault.file import (
    MAX_VALUE,
    check_name,
    check_opens,
    check_value,
    read_vault,
    remove_secret,
    rotate_vault,
    set_secret,
)
from leaseway.vault.key import (
    VAULT_KEY_VARIABLE,
    VAULT_NEW_KEY_VARIABLE,
    VaultError,
    VaultPlace,
    check_key,
    new_key,
    read_keys,
    write_keys,
)

_NEWLINES: Final = ("\r\n", "\n")


@click.group()
def vault() -> None:
    """Manage secrets in an encrypted file.

    Workers look up {secret: NAME} in their environment, then in the vault.
    """


@vault.command("set", epilog=examples("leaseway vault set db_password < password.txt"))
@click.argument("name")
@click.argument("more", nargs=-1, metavar="")
@vault_option
def set_(name: str, more: tuple[str, ...], vault: VaultPlace) -> None:
    """Set the secret NAME.

    The value is read from stdin, or from a hidden prompt.
    """
    if more:
        raise click.UsageError(
            "A value can't be an argument: process lists and the shell history would show it. "
            f"Pipe it in: leaseway vault set {name} < FILE"
        )
    with as_failure(VaultError, USAGE):
        check_name(name)
        value = _read_value(name)
        check_value(name, value)
    with as_failure(VaultError):
        created_key = set_secret(vault, name, value)
    if created_key:
        say(
            f"leaseway: The vault's new key is in {vault.key_file}. Store a copy away from the "
            "vault, which can't be read without the key.",
            err=True,
        )


@vault.command("list")
@json_option
@vault_option
def list_(as_json: bool, vault: VaultPlace) -> None:
    """List the names of the secrets, never their values."""
    with as_failure(VaultError):
        entries = read_vault(vault)
    if as_json:
        print_json([{"name": name, "set_at": entry.set_at} for name, entry in entries.items()])
    else:
        rows = [(name, entry.set_at) for name, entry in entries.items()]
        print_table(("NAME", "SET AT"), rows, f"The vault {vault.path} contains no secrets.")


@vault.command("rm")
@click.argument("name")
@vault_option
def rm(name: str, vault: VaultPlace) -> None:
    """Remove the secret NAME."""
    with as_failure(VaultError):
        remove_secret(vault, name)


@vault.command("rotate")
@click.option(
    "--new-key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of the new key; created with a random key if it does not exist.",
)
@vault_option
def rotate(new_key_file: Path | None, vault: VaultPlace) -> None:
    """Encrypt the vault with a new key.

    The new key is LEASEWAY_VAULT_NEW_KEY, or the key in --new-key-file, else a random key that
    replaces the current one in its file.
    """
    given = os.environ.get(VAULT_NEW_KEY_VARIABLE) or None
    if given and new_key_file:
        raise click.UsageError(f"Use either {VAULT_NEW_KEY_VARIABLE} or --new-key-file.")
    with as_failure(VaultError, USAGE):
        if given:
            check_key(given, VAULT_NEW_KEY_VARIABLE)
    if vault.passphrase is not None and not given and new_key_file is None:
        raise click.UsageError(
            f"The current key is in {VAULT_KEY_VARIABLE}, which a command cannot change: set "
            f"{VAULT_NEW_KEY_VARIABLE} to the new key, or name its file with --new-key-file."
        )
    with as_failure(VaultError):
        say(_rotate(vault, given, new_key_file), err=True)


def _rotate(place: VaultPlace, given: str | None, new_file: Path | None) -> str:
    """Rotate the key, and return a message for the user."""
    if new_file is not None:
        keys = read_keys(replace(place, key_file=new_file, passphrase=None))
        if not keys:
            check_opens(place)  # before a key is written
            keys = (new_key(),)
            write_keys(new_file, keys)
        rotate_vault(place, keys[0], None)
        return f"leaseway: The vault now opens with --vault-key-file {new_file}."
    if place.passphrase is not None:
        assert given is not None
        rotate_vault(place, given, None)
        return f"leaseway: The vault now opens with the new key; set {VAULT_KEY_VARIABLE} to it."
    rotate_vault(place, given or new_key(), place.key_file)
    return f"leaseway: The vault's new key is in {place.key_file}."


def _read_value(name: str) -> str:
    """Read a secret from stdin or a prompt."""
    if sys.stdin.isatty():
        value = click.prompt(
            f"Value of {name}", hide_input=True, confirmation_prompt=True, err=True
        )
        return str(value)
    # One newline more than the value: `echo` and editors append it.
    content = sys.stdin.buffer.read(MAX_VALUE + len("\r\n") + 1)
    try:
        value = content.decode()
    except UnicodeDecodeError:
        raise VaultError(f"The value of {name} is not UTF-8 text.") from None
    for newline in _NEWLINES:
        if value.endswith(newline):
            return value.removesuffix(newline)
    return value

"""`leaseway vault`: the encrypted file of secrets that workers resolve `{secret: NAME}` from."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from leaseway.cli.errors import FAILED, USAGE, CliFailure
from leaseway.cli.options.common import examples, json_option
from leaseway.cli.options.vault import vault_option
from leaseway.cli.output.tables import print_json, print_table, say
from leaseway.vault.file import (
    MAX_VALUE,
    check_name,
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
    """Keep secrets in an encrypted file.

    Workers look a {secret: NAME} up in their environment, then in the vault.
    """


@vault.command("set", epilog=examples("leaseway vault set db_password < password.txt"))
@click.argument("name")
@click.argument("more", nargs=-1, metavar="")
@vault_option
def set_(name: str, more: tuple[str, ...], vault: VaultPlace) -> None:
    """Set the secret NAME.

    The value comes from stdin, or from a prompt that does not show it.
    """
    if more:
        raise click.UsageError(
            "A value is never an argument: others see it in the list of processes, and the shell "
            f"keeps it. Pipe it in: leaseway vault set {name} < FILE"
        )
    with _sentences(USAGE):
        check_name(name)
        value = _read_value(name)
        check_value(name, value)
    with _sentences():
        made_key = set_secret(vault, name, value)
    if made_key:
        say(
            f"leaseway: The vault's new key is in {vault.key_file}. Keep a copy apart from the "
            "vault's: without it nobody can read the vault.",
            err=True,
        )


@vault.command("list")
@json_option
@vault_option
def list_(as_json: bool, vault: VaultPlace) -> None:
    """List the names of the secrets, never their values."""
    with _sentences():
        entries = read_vault(vault)
    if as_json:
        print_json([{"name": name, "set_at": entry.set_at} for name, entry in entries.items()])
    else:
        rows = [(name, entry.set_at) for name, entry in entries.items()]
        print_table(("NAME", "SET AT"), rows, f"The vault {vault.path} holds no secrets.")


@vault.command("rm")
@click.argument("name")
@vault_option
def rm(name: str, vault: VaultPlace) -> None:
    """Remove the secret NAME."""
    with _sentences():
        remove_secret(vault, name)


@vault.command("rotate")
@click.option(
    "--new-key-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file of the new key; made, with a random key, where there is none.",
)
@vault_option
def rotate(new_key_file: Path | None, vault: VaultPlace) -> None:
    """Encrypt the vault with a new key.

    That of LEASEWAY_VAULT_NEW_KEY or --new-key-file, else a random one in the present key file.
    """
    given = os.environ.get(VAULT_NEW_KEY_VARIABLE) or None
    if given and new_key_file:
        raise click.UsageError(f"Give either {VAULT_NEW_KEY_VARIABLE} or --new-key-file.")
    with _sentences(USAGE):
        if given:
            check_key(given, VAULT_NEW_KEY_VARIABLE)
    if vault.passphrase is not None and not given and new_key_file is None:
        raise click.UsageError(
            f"The present key comes from {VAULT_KEY_VARIABLE}, which a command cannot change: give "
            f"the new one in {VAULT_NEW_KEY_VARIABLE}, or name a file for it by --new-key-file."
        )
    with _sentences():
        say(_rotate(vault, given, new_key_file), err=True)


def _rotate(place: VaultPlace, given: str | None, new_file: Path | None) -> str:
    """Rotate, and return what is to be done about it."""
    if not place.path.exists():
        raise VaultError(f"There is no vault {place.path}; nothing to rotate.")
    if new_file is not None:
        keys = read_keys(replace(place, key_file=new_file, passphrase=None))
        if not keys:
            read_vault(place)  # no new key for a vault that does not open
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
    """Return the value that a person or a pipe gives."""
    if sys.stdin.isatty():
        value = click.prompt(
            f"Value of {name}", hide_input=True, confirmation_prompt=True, err=True
        )
        return str(value)
    # One line end more than the value: that of `echo` and of editors.
    content = sys.stdin.buffer.read(MAX_VALUE + len("\r\n") + 1)
    try:
        value = content.decode()
    except UnicodeDecodeError:
        raise VaultError(f"The value of {name} is not UTF-8 text.") from None
    for newline in _NEWLINES:
        if value.endswith(newline):
            return value.removesuffix(newline)
    return value


@contextlib.contextmanager
def _sentences(status: int = FAILED) -> Iterator[None]:
    try:
        yield
    except VaultError as error:
        raise CliFailure(str(error), status) from None

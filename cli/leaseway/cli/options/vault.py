"""`--vault` and `--vault-key-file`, for every command that uses the vault."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import click

from leaseway.cli.options.groups import arguments_for, grouped_options
from leaseway.vault.key import VAULT_VARIABLE, VaultError, VaultPlace, find_vault

_OPTIONS: Final = {
    "path": click.option(
        "--vault",
        "vault_path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar=VAULT_VARIABLE,
        show_envvar=True,
        help="The encrypted vault; else ~/.leaseway/vault.encrypted.",
    ),
    "key_file": click.option(
        "--vault-key-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The file of the vault's key; else LEASEWAY_VAULT_KEY, else ~/.leaseway/vault.key.",
    ),
}


def _find(path: Path | None, key_file: Path | None) -> VaultPlace:
    try:
        return find_vault(os.environ, path, key_file)
    except VaultError as error:
        raise click.UsageError(str(error)) from None


def _arguments(path: Path | None, key_file: Path | None) -> list[str]:
    _find(path, key_file)  # reports a bad vault here, once, and not in each child
    return arguments_for(_OPTIONS, SimpleNamespace(path=path, key_file=key_file))


vault_option = grouped_options("vault", _find, _OPTIONS)
"""Both options, as one argument `vault`: where the vault is and its key."""

vault_arguments_option = grouped_options("vault", _arguments, _OPTIONS)
"""Both options, as one argument `vault`: the same options for a child process."""

"""`--vault` and `--vault-key-file`, for every command that uses the vault."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from leaseway.cli.options.common import with_options
from leaseway.vault.key import VaultError, VaultPlace, find_vault

Command = Callable[..., Any]

_OPTIONS: Final = (
    click.option(
        "--vault",
        "vault_path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="LEASEWAY_VAULT",
        show_envvar=True,
        help="The encrypted vault; else ~/.leaseway/vault.encrypted.",
    ),
    click.option(
        "--vault-key-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="What opens the vault; else LEASEWAY_VAULT_KEY, else ~/.leaseway/vault.key.",
    ),
)


def vault_option(command: Command) -> Command:
    """Add both options, as one argument `vault`: where the vault is and what opens it."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        path, key_file = kwargs.pop("vault_path"), kwargs.pop("vault_key_file")
        return command(vault=_find(path, key_file), **kwargs)

    return with_options(wrapper, _OPTIONS)


def vault_words(command: Command) -> Command:
    """Add both options, as one argument `vault`: the words that give a child process the same."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        path, key_file = kwargs.pop("vault_path"), kwargs.pop("vault_key_file")
        _find(path, key_file)  # what is wrong with it is said once, and here
        given = {"--vault": path, "--vault-key-file": key_file}
        words = [word for name, at in given.items() if at for word in (name, os.fspath(at))]
        return command(vault=words, **kwargs)

    return with_options(wrapper, _OPTIONS)


def _find(path: Path | None, key_file: Path | None) -> VaultPlace:
    try:
        return find_vault(os.environ, path, key_file)
    except VaultError as error:
        raise click.UsageError(str(error)) from None

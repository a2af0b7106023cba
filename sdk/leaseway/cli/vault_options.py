"""`--vault` and `--vault-key-file`, for every command that uses the vault."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from leaseway.wire.vault_key import VaultError, VaultPlace, find_vault

__all__ = ["vault_option", "vault_paths"]

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


def vault_paths(command: Command) -> Command:
    """Add both options, as the arguments `vault_path` and `vault_key_file`; None is not said."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def vault_option(command: Command) -> Command:
    """Add both options, as one argument `vault`: where the vault is and what opens it."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        return command(vault=_find(kwargs), **kwargs)

    return vault_paths(wrapper)


def _find(kwargs: dict[str, Any]) -> VaultPlace:
    try:
        return find_vault(os.environ, kwargs.pop("vault_path"), kwargs.pop("vault_key_file"))
    except VaultError as error:
        raise click.UsageError(str(error)) from None

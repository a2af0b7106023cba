"""`--keys` and `--identity`: which credentials a plane takes, for the commands that start one."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.options.common import shared_key, with_options
from leaseway.wire.auth import KEY_VARIABLE, check_listen
from leaseway.wire.endpoint import Endpoint

if TYPE_CHECKING:
    from leaseway.identity.authenticator import Authenticator

Command = Callable[..., Any]

_OPTIONS: Final = (
    click.option(
        "--keys",
        "keys_path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="LEASEWAY_KEYS",
        show_envvar=True,
        help="Take the API keys of this file, see `leaseway key`.",
    ),
    click.option(
        "--identity",
        "identity_path",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="LEASEWAY_IDENTITY",
        show_envvar=True,
        help="A TOML file: whose keys, tokens and client certificates are taken.",
    ),
)


@dataclass(frozen=True)
class Credentials:
    """What a plane takes, and what it sends itself.

    Attributes:
        keys: The file of API keys, or None.
        identity: The identity file, or None.

    """

    keys: Path | None
    identity: Path | None

    @property
    def key(self) -> str | None:
        """What this process itself sends: the shared key, or a key of its own."""
        return shared_key()

    @functools.cached_property
    def authenticator(self) -> Authenticator:
        """What callers are checked by.

        Raises:
            click.UsageError: A file cannot be used.

        """
        from leaseway.identity.authenticator import authenticator_for
        from leaseway.identity.keys import KeyFileError
        from leaseway.identity.settings import IdentityFileError

        try:
            return authenticator_for(self.key, identity=self.identity, keys=self.keys)
        except (IdentityFileError, KeyFileError) as error:
            raise click.UsageError(str(error)) from None

    def require_for(self, endpoint: Endpoint) -> None:
        """Refuse an address that other machines reach where nothing is checked.

        Raises:
            click.UsageError: It is beyond loopback.

        """
        try:
            check_listen(endpoint, None if self.authenticator.is_open else self)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def share_key(self) -> None:
        """Have the processes that this one starts know one another, where callers have keys."""
        if not self.authenticator.is_open and self.key is None:
            import secrets

            os.environ[KEY_VARIABLE] = secrets.token_urlsafe(32)

    def as_arguments(self) -> list[str]:
        """Return the options that give a child process the same."""
        given = {"--keys": self.keys, "--identity": self.identity}
        return [word for name, path in given.items() if path for word in (name, os.fspath(path))]


def identity_options(command: Command) -> Command:
    """Add both options, as one argument `credentials`."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        keys, identity = kwargs.pop("keys_path"), kwargs.pop("identity_path")
        return command(credentials=Credentials(keys, identity), **kwargs)

    return with_options(wrapper, _OPTIONS)

"""`--keys` and `--identity`: which credentials a plane takes, for the commands that start one."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.options.common import shared_key, with_options
from leaseway.wire.channels.auth import KEY_VARIABLE, WORKER_KEY_VARIABLE, check_listen, read_key
from leaseway.wire.channels.endpoint import Endpoint

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


_SHORTEST_KEY: Final = 16


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

    @property
    def worker_key(self) -> str | None:
        """What workers join with, or None for the shared key.

        Raises:
            click.UsageError: It cannot be sent.
        """
        try:
            return read_key(os.environ, WORKER_KEY_VARIABLE)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

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
            return authenticator_for(
                self.key, identity=self.identity, keys=self.keys, worker_key=self.worker_key
            )
        except (IdentityFileError, KeyFileError) as error:
            raise click.UsageError(str(error)) from None

    def require_for(self, endpoint: Endpoint) -> None:
        """Refuse an address that other machines reach where nothing, or a short key, is checked.

        Raises:
            click.UsageError: It is beyond loopback.
        """
        for variable, key in ((KEY_VARIABLE, self.key), (WORKER_KEY_VARIABLE, self.worker_key)):
            if key and len(key) < _SHORTEST_KEY and not endpoint.is_loopback:
                raise click.UsageError(
                    f"{variable} has {len(key)} characters; beyond loopback, at {endpoint}, it has "
                    f"{_SHORTEST_KEY} at least. Make one with: "
                    "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
                )
        try:
            check_listen(endpoint, None if self.authenticator.is_open else self)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def share_keys(self) -> None:
        """Give the processes that this one starts what they know one another by.

        Workers join with a key of their own, also where callers need none: whoever else is on this
        machine cannot join. Where callers have keys, planes share another one.
        """
        if self.worker_key is None:
            os.environ[WORKER_KEY_VARIABLE] = secrets.token_urlsafe(32)
        if not self.authenticator.is_open and self.key is None:
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

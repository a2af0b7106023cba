"""`--keys` and `--identity`: which credentials a plane accepts."""

from __future__ import annotations

import functools
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leaseway.cli.options.common import shared_key
from leaseway.cli.options.groups import arguments_for, grouped_options, variables_of
from leaseway.wire.channels.auth import KEY_VARIABLE, WORKER_KEY_VARIABLE, check_listen, read_key
from leaseway.wire.channels.endpoint import Endpoint

if TYPE_CHECKING:
    from leaseway.identity.authenticator import Authenticator

_OPTIONS: Final = {
    "keys": click.option(
        "--keys",
        "keys_path",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="LEASEWAY_KEYS",
        show_envvar=True,
        help="Accept the API keys in this file; see `leaseway key`.",
    ),
    "identity": click.option(
        "--identity",
        "identity_path",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="LEASEWAY_IDENTITY",
        show_envvar=True,
        help="A TOML file that defines which keys, tokens and client certificates to accept.",
    ),
}

_MIN_KEY_LENGTH: Final = 16


@dataclass(frozen=True)
class Credentials:
    """The credentials that a plane accepts, and its own."""

    keys: Path | None
    """The file of API keys."""
    identity: Path | None
    """The identity file."""

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for path in (self.keys, self.identity) if path is not None)

    @property
    def key(self) -> str | None:
        """The key that this process sends: the shared key or an API key."""
        return shared_key()

    @property
    def worker_key(self) -> str | None:
        """The key that workers join with, or None for the shared key.

        Raises:
            click.UsageError: It cannot be sent as a header.
        """
        try:
            return read_key(os.environ, WORKER_KEY_VARIABLE)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    @functools.cached_property
    def authenticator(self) -> Authenticator:
        """The authenticator of callers.

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
        """Check that an address beyond loopback requires a credential, and no short key.

        Raises:
            click.UsageError: It requires none, or a short key.
        """
        for variable, key in ((KEY_VARIABLE, self.key), (WORKER_KEY_VARIABLE, self.worker_key)):
            if key and len(key) < _MIN_KEY_LENGTH and not endpoint.is_loopback:
                raise click.UsageError(
                    f"{variable} has {len(key)} characters; beyond loopback, at {endpoint}, it "
                    f"needs at least {_MIN_KEY_LENGTH}. Generate one: "
                    "python -c 'import secrets; print(secrets.token_urlsafe(32))'"
                )
        try:
            check_listen(endpoint, None if self.authenticator.is_open else self)
        except ValueError as error:
            raise click.UsageError(str(error)) from None

    def share_keys(self, *, private: bool = False) -> None:
        """Put generated keys into the environment of the planes that this process starts.

        Workers always join with their own key, even if callers need none: so that no other process
        of this machine can join. If callers need credentials, the planes also share a key.

        Args:
            private: Whether this process is the only caller.
        """
        if self.worker_key is None:
            os.environ[WORKER_KEY_VARIABLE] = secrets.token_urlsafe(32)
        if self.key is None and (private or not self.authenticator.is_open):
            os.environ[KEY_VARIABLE] = secrets.token_urlsafe(32)

    def as_arguments(self) -> list[str]:
        """Return these options for a child process."""
        return arguments_for(_OPTIONS, self)


identity_options = grouped_options("credentials", Credentials, _OPTIONS)
IDENTITY_VARIABLES: Final = variables_of(_OPTIONS)

"""`leaseway login`, `logins` and `logout`: people's logins to remote servers.

See design.md#tokens-for-remote-servers.
"""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from leaseway.cli.errors import FAILED, USAGE, CliFailure, as_failure
from leaseway.cli.options.common import examples, json_option
from leaseway.cli.options.config import config_option, existing_sources
from leaseway.cli.options.vault import vault_option
from leaseway.cli.output.tables import print_json, print_table, say
from leaseway.vault.file import read_vault
from leaseway.vault.key import VaultError, VaultPlace
from leaseway.vault.logins import Login, LoginStore
from leaseway.wire.names import DEFAULT_TENANT, KEY_RULE, is_valid_key, is_valid_tenant, nearest

if TYPE_CHECKING:
    from leaseway.data_plane.oauth.logins.login import Told
    from leaseway.data_plane.oauth.obtaining import Wanted

_TENANT: Final = click.option(
    "--tenant",
    default=DEFAULT_TENANT,
    show_default=True,
    help="The tenant whose calls use the login.",
)

_USER: Final = click.option(
    "--user", default="", help="The tenant's user whose calls use the login, with for: user."
)


class _Secrets:
    """The secrets of this machine's vault."""

    def __init__(self, place: VaultPlace) -> None:
        self._values = {name: entry.value for name, entry in read_vault(place).items()}

    def get(self, name: str) -> str | None:
        return self._values.get(name)


@click.command(
    epilog=examples(
        "leaseway login tracker",
        "leaseway login tracker --tenant acme",
        "leaseway login mail --tenant acme --user anna",
        "leaseway login tracker --device",
    )
)
@click.argument("server")
@_TENANT
@_USER
@click.option("--device", is_flag=True, help="Enter a code on another device instead.")
@click.option("--no-browser", is_flag=True, help="Only print the address, and open nothing.")
@config_option
@vault_option
def login(
    server: str,
    tenant: str,
    user: str,
    device: bool,
    no_browser: bool,
    config: tuple[str, ...],
    vault: VaultPlace,
) -> None:
    """Log a tenant or a user in to a remote server.

    The entry of SERVER has auth: {authorization_code: {for: tenant}}, or for: user. Run this as the
    workers' user on their machine. They use the login at once, and renew it.
    """
    from leaseway.data_plane.oauth.errors import AuthorizationError
    from leaseway.data_plane.oauth.logins.login import LoginRequest, log_in

    wanted = _wanted(server, tenant, user, config, vault)
    pasted = sys.stdin.fileno() if sys.stdin.isatty() else None
    request = LoginRequest(
        wanted,
        partial(_tell, opens=not no_browser, may_paste=pasted is not None),
        by_device=device,
        pasted=pasted,
    )
    with as_failure(VaultError):
        try:
            found, created_key = log_in(request, LoginStore(vault))
        except AuthorizationError as error:
            raise CliFailure(f"No login to the server {server}: {error}.") from None
    if created_key:
        say(
            f"leaseway: The vault's new key is in {vault.key_file}. Store a copy away from the "
            "vault, which can't be read without the key.",
            err=True,
        )
    if not found.refresh_token:
        end = "when it expires" if found.expires_at is None else f"at {_time(found.expires_at)}"
        say(f"leaseway: The login cannot be renewed; it ends {end}.", err=True)
    say(f"leaseway: {_whom(tenant, user)} is logged in to the server {server}.", err=True)


def _whom(tenant: str, user: str) -> str:
    return f"The user {user} of the tenant {tenant}" if user else f"The tenant {tenant}"


def _tell(told: Told, *, opens: bool, may_paste: bool) -> None:
    if told.fault:
        say(told.fault, err=True)
        return
    if told.code:
        say(f"Open {told.url} on any device, and enter the code {told.code}.", err=True)
        return
    say(f"Open this address in a browser of this machine:\n{told.url}", err=True)
    if may_paste:
        say(
            "If you open it on another machine, its browser ends at a page that cannot be reached:"
            " copy the address of that page, and paste it here.",
            err=True,
        )
    if opens and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        webbrowser.open(told.url)


@click.command()
@json_option
@vault_option
def logins(as_json: bool, vault: VaultPlace) -> int:
    """List the logins to remote servers, never their tokens."""
    with as_failure(VaultError):
        found, faults = LoginStore(vault).all()
    people = [login for login in found if login.granted_at]
    if as_json:
        print_json([_as_data(person) for person in people])
    else:
        print_table(
            ("SERVER", "TENANT", "USER", "STATE", "SINCE", "ISSUER", "SCOPES"),
            [
                (
                    person.key.server,
                    person.key.tenant,
                    person.key.user or "-",
                    _state(person),
                    datetime.fromtimestamp(person.granted_at, UTC),
                    person.issuer,
                    person.scope,
                )
                for person in people
            ],
            "Nobody is logged in.",
        )
    for fault in faults:
        say(f"leaseway: {fault}", err=True)
    return FAILED if faults else 0


def _as_data(found: Login) -> dict[str, object]:
    return {
        "server": found.key.server,
        "tenant": found.key.tenant,
        "user": found.key.user,
        "state": _state(found),
        "since": datetime.fromtimestamp(found.granted_at, UTC),
        "issuer": found.issuer,
        "scope": found.scope,
        "url": found.key.url,
    }


def _state(found: Login) -> str:
    if found.ended:
        return "ended"
    if found.refresh_token:
        return "renewed"
    is_over = found.expires_at is not None and found.expires_at <= time.time()
    return "expired" if is_over else "until it expires"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(" ", "minutes")


@click.command(
    epilog=examples(
        "leaseway logout tracker --tenant acme", "leaseway logout mail --tenant acme --user anna"
    )
)
@click.argument("server")
@_TENANT
@_USER
@config_option
@vault_option
def logout(server: str, tenant: str, user: str, config: tuple[str, ...], vault: VaultPlace) -> None:
    """End a tenant's or a user's login to a remote server.

    Workers close its connections, and the tokens are revoked where they were issued.
    """
    from leaseway.data_plane.oauth.logins.login import revoke
    from leaseway.data_plane.oauth.requests import Client
    from leaseway.data_plane.oauth.sealed import LOGIN_LOCK

    store = LoginStore(vault)
    with as_failure(VaultError):
        found, _ = store.all(server)
        ended = [
            login
            for login in found
            if (login.key.tenant, login.key.user) == (tenant, user) and login.granted_at
        ]
        if not ended:
            raise CliFailure(f"{_whom(tenant, user)} is not logged in to the server {server}.")
        client, addresses = Client(""), tuple[str, ...]()
        try:
            wanted = _wanted(server, tenant, user, config, vault)
            client, addresses = wanted.client, wanted.configured
        except click.ClickException:
            if not all(login.metadata.get("client") for login in ended):
                raise  # before anything is removed: what is not revoked could not be any more
        for listed in ended:
            # A worker that renews it now would otherwise write it again afterwards.
            with store.exclusive(listed.key, LOGIN_LOCK):
                login = store.read(listed.key) or listed
                store.remove(listed.key)  # before it is revoked: no worker uses it from now on
            cause = revoke(login, client, addresses)
            if cause is not None:
                say(f"leaseway: Its tokens were not revoked: {cause}.", err=True)
    say(f"leaseway: {_whom(tenant, user)} is logged out of the server {server}.", err=True)


def _wanted(
    server: str, tenant: str, user: str, config: Sequence[str], vault: VaultPlace
) -> Wanted:
    """Return the server of an entry with its client, resolved on this machine.

    Raises:
        CliFailure: There is no such server, or nobody logs in to it.
    """
    from leaseway.control_plane.config.loading import load_sources
    from leaseway.data_plane.kinds.values import resolve
    from leaseway.data_plane.oauth.obtaining import Wanted
    from leaseway.data_plane.oauth.requests import Client
    from leaseway.spec.model import VariantKey
    from leaseway.wire.errors import Fault

    if not is_valid_tenant(tenant):
        raise click.UsageError(f"'{tenant[:100]}' is not a tenant's name.")
    if not is_valid_key(user):
        raise click.UsageError(f"A user's name has {KEY_RULE}.")
    servers = load_sources(existing_sources(config)).servers
    spec = servers.get(VariantKey(server, tenant)) or servers.get(VariantKey(server))
    if spec is None:
        near = nearest(server, {key.server_id: None for key in servers}, 1)
        hint = f" Did you mean '{near[0]}'?" if near else " See: leaseway check"
        raise CliFailure(f"The configuration has no usable server '{server[:64]}'.{hint}", USAGE)
    if not spec.part.auth.logs_in:
        raise CliFailure(
            f"Nobody logs in to the server {server}: its entry has no auth: {{authorization_code:"
            " {for: tenant}}, or for: user.",
            USAGE,
        )
    if bool(user) is not (spec.part.auth.subject == "user"):
        raise CliFailure(
            f"The server {server} has logins of tenants, not of users: omit --user."
            if user
            else f"The server {server} has logins of users: add --user.",
            USAGE,
        )
    with as_failure(VaultError), as_failure(Fault):
        resolved = resolve(spec, os.environ, _Secrets(vault))
    client = Client.of(spec.part.auth, resolved.auth)
    return Wanted(
        server=server,
        url=resolved.url,
        auth=spec.part.auth,
        client=client,
        tenant=tenant,
        user=user,
    )

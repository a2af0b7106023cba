"""Logins whose tokens must be renewed, and problems that no test looks at."""

from __future__ import annotations

from tests.data_plane.oauth.guarded import Guarded
from tests.data_plane.oauth.renewing import wanted_at

from leaseway.data_plane.oauth.metadata import AuthorizationServer
from leaseway.data_plane.oauth.obtaining import Wanted
from leaseway.data_plane.oauth.requests import Client
from leaseway.data_plane.oauth.sealed import described_login
from leaseway.data_plane.oauth.tokens import InstanceProblems
from leaseway.vault.logins import Login, LoginStore
from leaseway.wire.errors import Fault


def expired(
    guarded: Guarded, store: LoginStore, client: Client | None = None
) -> tuple[Wanted, Login]:
    """Write a login whose token must be renewed; return for whom, and the login."""
    wanted = wanted_at(f"{guarded.base}/mcp")
    login = Login(
        wanted.login,
        access_token="old",
        obtained_at=1.0,
        expires_at=2.0,
        refresh_token="planted-refresh",
        granted_at=1.0,
    )
    server = AuthorizationServer(guarded.base, f"{guarded.base}/token")
    login = described_login(login, server, "", client)
    store.write(login)
    return wanted, login


class IgnoredProblems(InstanceProblems):
    """Takes problems, and does nothing with them."""

    def __init__(self) -> None:
        pass

    def report(self, fault: Fault) -> None:
        pass

    def clear(self) -> None:
        pass

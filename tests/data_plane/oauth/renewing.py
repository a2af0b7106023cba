"""A process that renews a login: `python -m tests.data_plane.oauth.renewing VAULT KEY URL`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.vaults import QUICK_VAULTS, use_quick_vaults

from leaseway.data_plane.oauth.challenges import Challenge
from leaseway.data_plane.oauth.obtaining import Attempt, Wanted
from leaseway.data_plane.oauth.requests import Client
from leaseway.data_plane.oauth.sealed import SealedTokens
from leaseway.spec.auth import Auth
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import LoginStore


def wanted_at(url: str) -> Wanted:
    """Return what the process wants: a token of the tenant acme for a server."""
    return Wanted(
        server="mail",
        url=url,
        auth=Auth("authorization_code", "tenant"),
        client=Client(""),
        tenant="acme",
    )


if __name__ == "__main__":
    vault, key, url = sys.argv[1:]
    use_quick_vaults(QUICK_VAULTS)
    store = LoginStore(VaultPlace(Path(vault), Path(key)))
    SealedTokens(store)(wanted_at(url), Attempt(Challenge(401)))

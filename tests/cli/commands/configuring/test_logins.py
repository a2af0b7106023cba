"""`leaseway logins` and `logout`, without the configuration that a login was made with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.vaults import QUICK_SCRYPT

from leaseway.data_plane.oauth.logins import login as logins
from leaseway.vault import file as vault
from leaseway.vault.key import VaultPlace, new_key, write_keys
from leaseway.vault.logins import Login, LoginKey, LoginStore

Run = Callable[..., Result]
REGISTERED = {"client": {"client_id": "made by the server"}}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoginStore:
    monkeypatch.setattr(vault, "_SCRYPT", QUICK_SCRYPT)
    for name in ("LEASEWAY_VAULT", "LEASEWAY_VAULT_KEY", "LEASEWAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".leaseway"
    folder.mkdir(mode=0o700)
    write_keys(folder / "vault.key", (new_key(),))
    return LoginStore(VaultPlace(folder / "vault.encrypted", folder / "vault.key"))


@pytest.mark.parametrize(("metadata", "ends"), [(REGISTERED, True), ({}, False)])
def test_a_login_ends_only_if_its_tokens_can_be_revoked(
    run: Run,
    store: LoginStore,
    monkeypatch: pytest.MonkeyPatch,
    metadata: Mapping[str, Any],
    ends: bool,
) -> None:
    revoked: list[object] = []
    monkeypatch.setattr(logins, "revoke", lambda login, *_: revoked.append(login.key))
    keys = [LoginKey("crm", url, "default") for url in ("https://a", "https://b")]
    for key in keys:
        store.write(Login(key, access_token="t", granted_at=1.0, metadata=metadata))
    done = run("logout", "crm", "--tenant", "default")
    left, _ = store.all("crm")
    assert (done.exit_code == 0) is ends
    assert (len(revoked), len(left)) == ((2, 0) if ends else (0, 2))


def test_a_list_of_logins_tells_which_are_renewed_and_which_are_over(
    run: Run, store: LoginStore
) -> None:
    soon, gone = time.time() + 3600, time.time() - 1
    wanted = {"a": ("r", gone), "b": ("", soon), "c": ("", gone), "d": ("", None)}
    for server, (refresh_token, expires_at) in wanted.items():
        key = LoginKey(server, "https://a", "default")
        made = Login(
            key,
            access_token="t",
            refresh_token=refresh_token,
            granted_at=1.0,
            expires_at=expires_at,
        )
        store.write(made)
    listed = json.loads(run("logins", "--json").stdout)
    states = {login["server"]: login["state"] for login in listed}
    assert states == {
        "a": "renewed",
        "b": "until it expires",
        "c": "expired",
        "d": "until it expires",
    }

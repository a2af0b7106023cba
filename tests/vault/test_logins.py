"""Sealed logins: kept, listed, locked, and encrypted again when the vault's key changes."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from leaseway.vault.file import read_vault, rotate_vault, set_secret
from leaseway.vault.key import VaultError, VaultPlace
from leaseway.vault.logins import Login, LoginKey, LoginStore

KEY = LoginKey("mail", "https://mail.example/mcp", "acme", issuer="https://login.example")
ALICE = Login(
    KEY,
    issuer="https://login.example",
    access_token="planted-access",
    obtained_at=10.0,
    expires_at=20.0,
    refresh_token="planted-refresh",
    granted_at=5.0,
    metadata={"scopes": ["read"]},
)


@pytest.fixture
def place(tmp_path: Path) -> VaultPlace:
    return VaultPlace(tmp_path / "vault", tmp_path / "key", None)


def test_a_login_is_sealed_and_its_representation_shows_no_token(place: VaultPlace) -> None:
    store = LoginStore(place)
    assert not store.has_key
    assert store.read(KEY) is None
    assert store.write(ALICE)  # made the key
    assert not store.write(ALICE)
    assert store.read(KEY) == ALICE
    files = [path for path in place.logins.iterdir() if path.is_file()]
    assert not [path for path in files if b"planted" in path.read_bytes()]
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)
    assert "planted" not in repr(store.read(KEY))


def test_a_login_in_a_folder_without_access_has_a_stamp(
    place: VaultPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    store = LoginStore(place)
    store.write(ALICE)
    readable = store.stamp(KEY)
    monkeypatch.setattr(Path, "stat", refuse)
    assert store.stamp(KEY) != readable


@pytest.mark.parametrize("field", ["server", "url", "tenant", "client", "issuer", "resource"])
def test_all_that_makes_another_token_makes_another_login(place: VaultPlace, field: str) -> None:
    store = LoginStore(place)
    store.write(ALICE)
    assert store.read(replace(KEY, **{field: "other"})) is None


def test_logins_are_listed_by_server_and_an_unreadable_one_costs_only_itself(
    place: VaultPlace,
) -> None:
    store = LoginStore(place)
    beta = replace(ALICE, key=replace(KEY, tenant="beta"))
    other = replace(ALICE, key=replace(KEY, server="mailbox"))
    for login in (other, beta, ALICE):
        store.write(login)
    assert store.all("mail") == ([ALICE, beta], [])
    damaged = place.logins / "tracker.0.login"
    damaged.write_bytes(b"damaged")
    damaged.chmod(0o600)
    logins, faults = store.all()
    assert logins == [ALICE, beta, other]
    assert len(faults) == 1
    store.remove(KEY)
    store.remove(KEY)
    assert store.all("mail")[0] == [beta]


def test_a_rotation_of_the_key_keeps_the_logins(place: VaultPlace) -> None:
    store = LoginStore(place)
    store.write(ALICE)
    rotate_vault(place, "a new key of enough characters", place.key_file)
    assert store.read(KEY) == ALICE
    set_secret(place, "a", "1")
    rotate_vault(place, "a newer key of enough characters", None)
    with pytest.raises(VaultError):
        store.read(KEY)
    newest = replace(place, passphrase="a newer key of enough characters")
    assert LoginStore(newest).read(KEY) == ALICE


def test_a_rotation_that_cannot_read_a_login_changes_nothing(place: VaultPlace) -> None:
    store = LoginStore(place)
    store.write(ALICE)
    set_secret(place, "a", "1")
    unsafe = place.logins / "a.0.login"
    unsafe.write_bytes(b"")
    unsafe.chmod(0o644)
    new = "a new key of enough characters"
    with pytest.raises(VaultError, match=r"a\.0\.login"):
        rotate_vault(place, new, None)
    assert read_vault(place)["a"].value == "1"
    unsafe.chmod(0o600)  # no key opens it, which costs only itself
    rotate_vault(place, new, None)
    assert LoginStore(replace(place, passphrase=new)).read(KEY) == ALICE


def test_only_one_process_requests_a_token(place: VaultPlace) -> None:
    store, other = LoginStore(place), LoginStore(place)
    with store.exclusive(KEY, 1.0):
        with other.exclusive(replace(KEY, tenant="beta"), 1.0):
            assert other.read(KEY) is None
        with pytest.raises(VaultError, match="Another process"), other.exclusive(KEY, 0.05):
            pytest.fail("Both have the lock.")
    with other.exclusive(KEY, 1.0):
        other.write(ALICE)

"""The sealed clients beside a vault."""

from __future__ import annotations

from pathlib import Path

import pytest

from leaseway.vault import clients as module
from leaseway.vault.clients import ClientKey, ClientStore, RegisteredClient
from leaseway.vault.file import rotate_vault, set_secret
from leaseway.vault.key import VaultError, VaultPlace, new_key

KEY = ClientKey("mail", "https://mail.example/mcp", "https://login.example", "device")
CLIENT = RegisteredClient(KEY, "one", secret="planted-secret", scopes=("read",), expires_at=9.0)


@pytest.fixture
def place(tmp_path: Path) -> VaultPlace:
    place = VaultPlace(tmp_path / "vault", tmp_path / "key")
    set_secret(place, "WORD", "word")
    return place


def other(number: int) -> RegisteredClient:
    return RegisteredClient(ClientKey("mail", f"https://{number}", "https://as", "device"), "one")


def test_a_client_is_sealed_and_read_again_also_after_a_rotation(place: VaultPlace) -> None:
    ClientStore(place).write(CLIENT)
    (path,) = place.logins.glob("*.login")
    assert b"planted-secret" not in path.read_bytes()
    assert "planted-secret" not in repr(CLIENT)
    rotate_vault(place, new_key(), place.key_file)
    found = ClientStore(place).read(KEY)
    assert found is not None
    assert (found.id, found.secret, list(found.scopes or ())) == ("one", "planted-secret", ["read"])


def test_a_vault_without_a_key_keeps_no_client(tmp_path: Path) -> None:
    with pytest.raises(VaultError, match="has no key"):
        ClientStore(VaultPlace(tmp_path / "vault", tmp_path / "key")).write(CLIENT)


def test_a_client_is_forgotten_at_its_own_authorization_server_only(place: VaultPlace) -> None:
    store = ClientStore(place)
    store.write(CLIENT)
    store.write(other(1))
    store.forget("https://as", "one")
    assert store.read(other(1).key) is None
    assert store.read(KEY) is not None


def test_who_has_not_finished_is_noted_for_this_client_and_for_so_many(
    place: VaultPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_UNFINISHED", 3)
    store = ClientStore(place)
    store.write(CLIENT)
    store.begin(RegisteredClient(KEY, "another"), "anna")
    for number in range(4):
        store.begin(CLIENT, f"user {number}")
    store.end(CLIENT, "user 2")
    found = store.read(KEY)
    assert found is not None
    assert list(found.unfinished) == ["user 1", "user 3"]


def test_the_oldest_client_gives_way(place: VaultPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CLIENTS", 2)
    store = ClientStore(place)
    for number in range(3):
        store.write(other(number))
    assert [store.read(other(number).key) is not None for number in range(3)] == [False, True, True]

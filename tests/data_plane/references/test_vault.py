"""The worker's view of the vault: as the file is, or why it cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tests.vaults import QUICK_SCRYPT

from leaseway.data_plane.references import vault as worker_vault
from leaseway.data_plane.references.vault import WorkerVault
from leaseway.vault import file as vault
from leaseway.vault.file import Secret, read_vault, rotate_vault, set_secret
from leaseway.vault.key import VaultError, VaultPlace, new_key


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VaultPlace:
    monkeypatch.setattr(vault, "_SCRYPT", QUICK_SCRYPT)
    return VaultPlace(tmp_path / "vault", tmp_path / "key")


def test_a_vault_keeps_the_secrets_that_were_read_last(place: VaultPlace) -> None:
    known = WorkerVault(place)
    known.refresh()
    assert known.get("a") is None
    set_secret(place, "a", "1")
    assert known.get("a") is None
    known.refresh()
    assert (known.get("a"), known.error) == ("1", None)
    place.path.unlink()
    known.refresh()
    assert known.get("a") is None


def test_an_unchanged_vault_is_read_once(
    place: VaultPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_secret(place, "a", "1")
    reads: list[VaultPlace] = []

    def count(place: VaultPlace) -> Mapping[str, Secret]:
        reads.append(place)
        return read_vault(place)

    monkeypatch.setattr(worker_vault, "read_vault", count)
    known = WorkerVault(place)
    for _ in range(3):
        known.refresh()
    assert len(reads) == 1
    set_secret(place, "a", "2")
    known.refresh()
    assert len(reads) == 2


def test_an_unreadable_vault_has_an_error_until_it_can_be_read(place: VaultPlace) -> None:
    set_secret(place, "a", "1")
    known = WorkerVault(place)
    whole, key = place.path.read_bytes(), place.key_file.read_bytes()
    place.path.write_bytes(b"damaged")
    known.refresh()
    with pytest.raises(VaultError, match="is damaged or not a vault"):
        known.get("a")
    place.path.write_bytes(whole)
    known.refresh()
    assert known.get("a") == "1"
    place.key_file.unlink()
    known.refresh()
    with pytest.raises(VaultError, match="has no key here"):
        known.get("a")
    place.key_file.touch(mode=0o600)
    place.key_file.write_bytes(key)
    known.refresh()
    assert known.get("a") == "1"


def test_a_rotated_key_file_is_followed(place: VaultPlace) -> None:
    set_secret(place, "a", "1")
    known = WorkerVault(place)
    known.refresh()
    rotate_vault(place, new_key(), place.key_file)
    set_secret(place, "a", "2")
    known.refresh()
    assert (known.get("a"), known.error) == ("2", None)


def test_a_worker_without_a_vault_has_no_secrets_and_no_error(place: VaultPlace) -> None:
    known = WorkerVault(None)
    known.refresh()
    assert (known.get("a"), known.error, known.stamps) == (None, None, ())
    keyed = WorkerVault(replace(place, passphrase="a key of sixteen or more"))
    assert len(keyed.stamps) == 1

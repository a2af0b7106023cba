"""The vault: secrets are readable with its key only."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives.kdf import scrypt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leaseway.vault import file as vault
from leaseway.vault import private_file
from leaseway.vault.file import (
    MAX_VALUE,
    check_name,
    check_value,
    read_vault,
    remove_secret,
    rotate_vault,
    set_secret,
)
from leaseway.vault.key import VaultError, VaultPlace, find_vault, new_key, read_keys
from leaseway.vault.private_file import PrivateFileError, locked

KEY = "correct horse battery staple"
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,128}", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=200)
few = settings(
    max_examples=25,
    deadline=None,
    # This replaces the default, so slow generation of examples must be listed too.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def place(tmp_path: Path) -> VaultPlace:
    return VaultPlace(tmp_path / "v" / "vault.encrypted", tmp_path / "v" / "vault.key", KEY)


def values(place: VaultPlace) -> dict[str, str]:
    return {name: entry.value for name, entry in read_vault(place).items()}


@few
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
def test_a_secret_is_read_back_and_is_not_in_the_file_as_plain_text(
    place: VaultPlace, secrets: dict[str, str]
) -> None:
    place.path.unlink(missing_ok=True)
    secrets = {name: f"not to be seen: {value}" for name, value in secrets.items()}
    for name, value in secrets.items():
        set_secret(place, name, value)
    assert values(place) == secrets
    assert b"not to be seen" not in place.path.read_bytes()


def test_a_missing_vault_is_empty(place: VaultPlace) -> None:
    assert values(place) == {}


def test_a_removed_secret_no_longer_exists(place: VaultPlace) -> None:
    set_secret(place, "a", "1")
    set_secret(place, "b", "2")
    remove_secret(place, "a")
    assert values(place) == {"b": "2"}
    with pytest.raises(VaultError, match="has no secret 'a'"):
        remove_secret(place, "a")


def test_written_files_are_private(place: VaultPlace) -> None:
    set_secret(replace(place, passphrase=None), "a", "1")
    modes = {path.name: path.stat().st_mode & 0o777 for path in place.path.parent.iterdir()}
    assert modes == {".vault.encrypted.lock": 0o600, "vault.encrypted": 0o600, "vault.key": 0o600}
    assert place.path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620])
@pytest.mark.parametrize("name", ["path", "key_file"])
def test_a_file_open_to_other_users_is_rejected(place: VaultPlace, name: str, mode: int) -> None:
    in_file = replace(place, passphrase=None)
    set_secret(in_file, "a", "1")
    getattr(place, name).chmod(mode)
    with pytest.raises(VaultError, match="chmod 600"):
        read_vault(in_file)


def test_changed_added_or_missing_bytes_are_detected(place: VaultPlace) -> None:
    set_secret(place, "a", "the value")
    whole = place.path.read_bytes()
    for at in range(len(whole)):
        for content in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x01]) + whole[at + 1 :]):
            place.path.write_bytes(content)
            with pytest.raises(VaultError) as rejected:
                read_vault(place)
            assert "the value" not in str(rejected.value)
    place.path.write_bytes(whole + b"x")
    with pytest.raises(VaultError):
        read_vault(place)


def test_a_wrong_key_is_rejected_and_changes_nothing(place: VaultPlace) -> None:
    set_secret(place, "a", "1")
    before = place.path.read_bytes()
    other = replace(place, passphrase="another key of enough characters")
    for use in (
        lambda: read_vault(other),
        lambda: set_secret(other, "b", "2"),
        lambda: remove_secret(other, "a"),
        lambda: rotate_vault(other, new_key(), None),
    ):
        with pytest.raises(VaultError, match="does not open with the key of LEASEWAY_VAULT_KEY"):
            use()
    assert place.path.read_bytes() == before


def test_an_error_about_a_missing_key_names_the_places_for_keys(place: VaultPlace) -> None:
    set_secret(place, "a", "1")
    lost = replace(place, passphrase=None)
    for use in (lambda: read_vault(lost), lambda: set_secret(lost, "b", "2")):
        with pytest.raises(VaultError, match=r"LEASEWAY_VAULT_KEY.*--vault-key-file"):
            use()
    assert not lost.key_file.exists()


def test_a_vault_of_a_newer_version_is_not_changed(place: VaultPlace) -> None:
    place.path.parent.mkdir(mode=0o700)
    place.path.touch(mode=0o600)
    place.path.write_bytes(b"leaseway-vault 2\nwhatever")
    with pytest.raises(VaultError, match="another version"):
        set_secret(place, "a", "1")
    assert place.path.read_bytes() == b"leaseway-vault 2\nwhatever"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 129, "ä", "a\n"])
def test_names_are_limited(name: str) -> None:
    with pytest.raises(VaultError, match="is not a valid secret name"):
        check_name(name)
    check_name("x" * 128)


def test_values_are_limited() -> None:
    check_value("a", "x" * MAX_VALUE)
    for value in ("", "x" * (MAX_VALUE + 1), "ä" * (MAX_VALUE // 2 + 1), "a\0b"):
        with pytest.raises(VaultError) as rejected:
            check_value("a", value)
        assert len(str(rejected.value)) < 200


def test_the_number_of_secrets_is_limited(
    place: VaultPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vault, "MAX_ENTRIES", 2)
    set_secret(place, "a", "1")
    set_secret(place, "b", "1")
    set_secret(place, "b", "2")
    with pytest.raises(VaultError, match="has 2 secrets"):
        set_secret(place, "c", "1")
    assert values(place) == {"a": "1", "b": "2"}


def test_the_size_of_the_file_is_limited(
    place: VaultPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_secret(place, "a", "1")
    monkeypatch.setattr(vault, "MAX_VAULT", 200)
    with pytest.raises(VaultError, match="more than 200 bytes"):
        set_secret(place, "b", "x" * 300)
    assert values(place) == {"a": "1"}


def test_repr_shows_no_values_and_keys(place: VaultPlace) -> None:
    set_secret(place, "a", "hunter22")
    shown = repr(read_vault(place)) + repr(place)
    assert "hunter22" not in shown
    assert KEY not in shown


def test_the_first_secret_makes_a_key_file_and_the_next_uses_it(place: VaultPlace) -> None:
    in_file = replace(place, passphrase=None)
    assert set_secret(in_file, "a", "1") is True
    assert set_secret(in_file, "b", "2") is False
    assert values(in_file) == {"a": "1", "b": "2"}
    assert len(read_keys(in_file)[0]) >= 40


def test_after_a_rotation_only_the_new_key_works(place: VaultPlace) -> None:
    set_secret(place, "a", "1")
    when = read_vault(place)["a"].set_at
    rotate_vault(place, "a new key of enough characters", None)
    with pytest.raises(VaultError):
        read_vault(place)
    rotated = read_vault(replace(place, passphrase="a new key of enough characters"))
    assert (rotated["a"].value, rotated["a"].set_at) == ("1", when)


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_rotation_interrupted_at_any_write_keeps_the_vault_readable(
    place: VaultPlace, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    in_file = replace(place, passphrase=None)
    set_secret(in_file, "a", "1")
    writes = iter(range(1, 4))
    real = private_file.write_private

    def interrupt(path: Path, content: bytes) -> None:
        if next(writes) == write:
            raise KeyboardInterrupt
        real(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(vault, "write_private", interrupt)
        patched.setattr("leaseway.vault.key.write_private", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rotate_vault(in_file, new_key(), in_file.key_file)
    assert values(in_file) == {"a": "1"}
    rotate_vault(in_file, new_key(), in_file.key_file)
    assert values(in_file) == {"a": "1"}
    assert len(read_keys(in_file)) == 1


def test_a_process_derives_the_key_of_a_passphrase_once(
    place: VaultPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived = Mock(wraps=scrypt.Scrypt)
    monkeypatch.setattr(scrypt, "Scrypt", derived)
    place = replace(place, passphrase=new_key())
    files = [replace(place, path=place.path.with_name(f"{n}.login")) for n in range(3)]
    for value in "first", "second":
        for file in files:
            set_secret(file, "a", value)
            assert values(file) == {"a": value}
    assert derived.call_count == 1
    contents = [file.path.read_bytes() for file in files]
    assert len({content[vault._HEADER : vault._HEADER + vault._NONCE] for content in contents}) == 3


CRASH = """
import os, sys
from pathlib import Path
from leaseway.vault import file as vault
from leaseway.vault.key import VaultPlace

vault._SCRYPT = {"length": 32, "n": 2**4, "r": 8, "p": 1}
Path.replace = lambda *_: os._exit(9)  # before the rename
vault.set_secret(VaultPlace(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]), "a", "new")
"""


def test_a_crash_between_write_and_rename_leaves_the_old_vault(place: VaultPlace) -> None:
    set_secret(place, "a", "old")
    words = [str(place.path), str(place.key_file), str(place.passphrase)]
    done = subprocess.run([sys.executable, "-c", CRASH, *words], timeout=60, check=False)
    assert done.returncode == 9
    assert values(place) == {"a": "old"}
    set_secret(place, "a", "newer")
    assert values(place) == {"a": "newer"}
    assert not list(place.path.parent.glob(".*.new"))


def test_writers_in_many_processes_lose_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from leaseway.vault import file as vault\n"
        "from leaseway.vault.key import VaultPlace\n"
        "vault._SCRYPT = {'length': 32, 'n': 16, 'r': 8, 'p': 1}\n"
        "place = VaultPlace(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "for i in range(8): vault.set_secret(place, f'{sys.argv[3]}-{i}', 'x')\n"
    )
    place = VaultPlace(tmp_path / "vault", tmp_path / "key")
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(place.path), str(place.key_file), f"w{n}"]
        )
        for n in range(4)
    ]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert set(read_vault(place)) == {f"w{n}-{i}" for n in range(4) for i in range(8)}


def test_waiting_for_another_writer_is_limited(place: VaultPlace) -> None:
    with (
        locked(place.path),
        pytest.raises(PrivateFileError, match="Another process has been writing"),
        locked(place.path, timeout=0.05),
    ):
        pass


def test_a_writer_waits_as_long_as_others_finish_their_writes(
    place: VaultPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = itertools.count()
    monkeypatch.setattr(private_file, "file_stamp", lambda _path: (min(next(polls), 30),))
    with locked(place.path), pytest.raises(PrivateFileError), locked(place.path, timeout=0.05):
        pass
    assert next(polls) > 30


def test_a_vault_that_cannot_be_locked_is_unchanged(place: VaultPlace, tmp_path: Path) -> None:
    set_secret(place, "a", "1")
    lock = place.path.with_name(f".{place.path.name}.lock")
    lock.unlink()
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(VaultError, match="cannot be locked"):
        set_secret(place, "a", "2")
    assert values(place) == {"a": "1"}


def test_a_linked_vault_stays_a_link(place: VaultPlace, tmp_path: Path) -> None:
    set_secret(place, "a", "1")
    link = tmp_path / "link"
    link.symlink_to(place.path)
    set_secret(replace(place, path=link), "b", "2")
    assert link.is_symlink()
    assert values(place) == {"a": "1", "b": "2"}


def test_a_folder_is_not_a_vault(place: VaultPlace) -> None:
    place.path.mkdir(parents=True)
    with pytest.raises(VaultError, match="cannot be read"):
        read_vault(place)


@pytest.mark.parametrize("content", [b"", b"short\n", b"\xff\xfe", b"x" * 5000, b"a" * 2000])
def test_an_invalid_key_file_is_rejected(place: VaultPlace, content: bytes) -> None:
    set_secret(place, "a", "1")
    place.key_file.touch(mode=0o600)
    place.key_file.write_bytes(content)
    with pytest.raises(VaultError, match=r"key") as rejected:
        read_vault(replace(place, passphrase=None))
    assert "short" not in str(rejected.value)


def test_the_environment_sets_the_path_and_the_key(tmp_path: Path) -> None:
    environment = {"LEASEWAY_VAULT": str(tmp_path / "v"), "LEASEWAY_VAULT_KEY": KEY}
    home = Path.home() / ".leaseway"
    assert find_vault(environment) == VaultPlace(tmp_path / "v", home / "vault.key", KEY)
    assert find_vault({}) == VaultPlace(home / "vault.encrypted", home / "vault.key")
    named = find_vault(environment, tmp_path / "w", tmp_path / "k")
    assert named == VaultPlace(tmp_path / "w", tmp_path / "k")


@pytest.mark.parametrize("key", ["short", " spaces at the ends ", "two lines of\na long key"])
def test_a_weak_key_is_rejected_and_not_shown(key: str) -> None:
    with pytest.raises(VaultError, match="LEASEWAY_VAULT_KEY") as rejected:
        find_vault({"LEASEWAY_VAULT_KEY": key})
    assert key not in str(rejected.value)

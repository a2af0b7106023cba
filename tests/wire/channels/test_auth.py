"""The credential of a process, and the addresses that need one."""

from __future__ import annotations

from pathlib import Path

import pytest

from leaseway.wire.channels import auth
from leaseway.wire.channels.auth import (
    CredentialFile,
    bearer_credential,
    bearer_metadata,
    check_listen,
    read_key,
)
from leaseway.wire.channels.endpoint import parse_endpoint
from leaseway.wire.secrets.trusted_files import read_trusted

KEY = "correct-horse"


def test_without_a_key_no_metadata_is_sent() -> None:
    assert bearer_metadata(None) == ()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.8.8.8:0"])
def test_loopback_needs_no_key(address: str) -> None:
    check_listen(parse_endpoint(address), None)


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"])
def test_listening_beyond_loopback_needs_a_key(address: str) -> None:
    check_listen(parse_endpoint(address), KEY)
    with pytest.raises(ValueError, match="LEASEWAY_KEY"):
        check_listen(parse_endpoint(address), None)


def test_an_invalid_key_is_rejected_without_showing_it() -> None:
    assert read_key({"LEASEWAY_KEY": KEY}) == KEY
    assert read_key({"LEASEWAY_KEY": ""}) is None
    with pytest.raises(ValueError, match="visible ASCII") as caught:
        read_key({"LEASEWAY_KEY": "geheim üml"})
    assert "geheim" not in str(caught.value)


def test_a_line_break_after_a_key_is_named() -> None:
    with pytest.raises(ValueError, match="ends with a space or a line break") as caught:
        read_key({"LEASEWAY_KEY": f"{KEY}\n"})
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "bearer "])
def test_the_scheme_of_a_bearer_credential_has_no_case(scheme: str) -> None:
    assert bearer_credential(f"{scheme} {KEY} ") == KEY


@pytest.mark.parametrize("header", ["", KEY, f"Basic {KEY}", "Bearer", "Bearer ", f"Bearer\t{KEY}"])
def test_nothing_else_is_a_bearer_credential(header: str) -> None:
    assert bearer_credential(header) == ""


def test_a_key_may_be_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\r\n")
    assert read_key({"LEASEWAY_KEY_FILE": str(path)}) == KEY
    with pytest.raises(ValueError, match="not both"):
        read_key({"LEASEWAY_KEY": KEY, "LEASEWAY_KEY_FILE": str(path)})


def test_the_last_credential_stays_in_use_while_its_file_holds_none(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("first")
    file = CredentialFile(path)
    path.unlink()
    assert file.current() == "first"
    path.write_text("")
    assert file.current() == "first"
    path.write_text("second")
    assert file.current() == "second"


def test_a_file_that_holds_no_credential_is_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key"
    path.write_text("first")
    file = CredentialFile(path)
    for content in ("", " ", "second"):
        path.write_text(content)
        file.current()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{path} holds no credential" in caplog.text


def test_a_file_that_holds_no_credential_is_read_again_only_a_moment_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reads = 100.0, list[Path]()
    monkeypatch.setattr("time.monotonic", lambda: now)
    path = tmp_path / "key"
    path.write_text("first")
    file = CredentialFile(path)
    path.write_text("")

    def read(path: Path, limit: int) -> bytes:
        reads.append(path)
        return read_trusted(path, limit)

    monkeypatch.setattr(auth, "read_trusted", read)
    for _ in range(10):
        file.current()
    assert len(reads) == 1
    now += 2
    for _ in range(10):
        file.current()
    assert len(reads) == 2

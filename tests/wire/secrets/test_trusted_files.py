"""Files that other users of the machine may change or read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leaseway.wire.secrets.trusted_files import (
    UntrustedFile,
    check_secret,
    check_trusted,
    read_trusted,
)

Check = Callable[[int, Path], None]


def checked(check: Check, path: Path) -> None:
    with path.open("rb") as file:
        check(file.fileno(), path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "private" / "file"
    path.parent.mkdir(mode=0o700)
    path.write_text("x")
    return path


@pytest.mark.parametrize(
    ("mode", "is_trusted", "is_secret"),
    [
        (0o600, True, True),
        (0o400, True, True),
        (0o644, True, False),
        (0o640, True, False),
        (0o620, False, False),
        (0o602, False, False),
        (0o664, False, False),
        (0o666, False, False),
        (0o777, False, False),
    ],
)
def test_the_mode_of_a_file_decides_who_may_change_and_read_it(
    file: Path, mode: int, is_trusted: bool, is_secret: bool
) -> None:
    file.chmod(mode)
    checks: tuple[tuple[Check, bool], ...] = (
        (check_trusted, is_trusted),
        (check_secret, is_secret),
    )
    for check, accepts in checks:
        if accepts:
            checked(check, file)
        else:
            with pytest.raises(UntrustedFile, match=f"mode {mode:04o}.*chmod"):
                checked(check, file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_group_may_read_the_file_of_another_user(file: Path) -> None:
    os.chown(file, 12345, -1)
    file.chmod(0o660)  # as Kubernetes mounts a volume for a group
    checked(check_secret, file)
    file.chmod(0o664)
    with pytest.raises(UntrustedFile):
        checked(check_secret, file)


@pytest.mark.parametrize("check", [check_trusted, check_secret])
def test_a_file_that_others_can_replace_is_refused(
    file: Path, tmp_path: Path, check: Check
) -> None:
    file.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(file)
    file.parent.chmod(0o777)
    for path in (file, link):
        with pytest.raises(UntrustedFile, match="can be replaced"):
            checked(check, path)
    file.parent.chmod(0o1777)  # as /tmp: only the owner of a file can replace it
    checked(check, file)
    checked(check, link)


def test_a_trusted_file_is_read_with_one_byte_beyond_the_limit(file: Path) -> None:
    file.write_bytes(b"12345")
    assert read_trusted(file, 10) == b"12345"
    assert read_trusted(file, 3) == b"1234"
    with pytest.raises(FileNotFoundError):
        read_trusted(file.with_name("none"), 3)

"""A file's stamp: it differs after each change of the file, and stays otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leaseway.wire.file_stamp import file_stamp


def rewrite(path: Path) -> None:
    """Change the content and set the modification time back, as an archive's tool does."""
    before = path.stat()
    path.write_text("longer")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("same")
    other.replace(path)


@pytest.mark.parametrize("change", [rewrite, replace, Path.unlink, lambda path: path.chmod(0o640)])
def test_a_stamp_differs_after_a_change(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "file"
    path.write_text("same")
    path.chmod(0o600)
    before = file_stamp(path)
    assert file_stamp(path) == before
    change(path)
    assert file_stamp(path) != before


def test_a_missing_file_and_one_that_cannot_be_looked_at_differ(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert file_stamp(tmp_path / "none") != file_stamp(tmp_path / "file" / "below")


def test_a_name_with_a_zero_byte_has_a_stamp() -> None:
    assert file_stamp(Path("a\0b")) == file_stamp(Path("c\0d"))

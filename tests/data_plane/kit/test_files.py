"""Files below one folder can be read and listed, and no others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from leaseway.data_plane.kit import files
from leaseway.data_plane.kit.files import MAX_FILE, MAX_LISTED, list_files, read_file
from leaseway.data_plane.kit.tools import Refusal


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with files, beside one that nobody may see."""
    served = tmp_path / "served"
    (served / "docs" / "deep").mkdir(parents=True)
    (served / "a.md").write_text("hello ä")
    (served / "docs" / "b.md").write_text("b")
    (served / "docs" / "deep" / "c.txt").write_text("c")
    (tmp_path / "secret.txt").write_text("hidden")
    (tmp_path / "served-too").mkdir()
    (tmp_path / "served-too" / "x").write_text("hidden")
    return served.resolve()


def read(root: Path, path: str) -> str:
    return read_file(root).run({"path": path}).text


def listed(root: Path, **arguments: Any) -> list[str]:
    structured = list_files(root).run(arguments).structured
    assert structured is not None
    found = structured["files"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("path", ["a.md", "./a.md", "docs/../a.md", "link"])
def test_a_file_below_the_folder_is_read(root: Path, path: str) -> None:
    (root / "link").symlink_to("docs/../a.md")
    assert read(root, path) == "hello ä"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "docs/../../secret.txt",
        "/etc/passwd",
        "..",
        "../served-too/x",
        "out",
        "folder_out/secret.txt",
        "a\0b",
    ],
)
def test_nothing_outside_the_folder_is_read(root: Path, path: str) -> None:
    (root / "out").symlink_to(root.parent / "secret.txt")
    (root / "folder_out").symlink_to(root.parent)
    with pytest.raises(Refusal) as caught:
        read(root, path)
    assert "hidden" not in str(caught.value)


def test_an_absolute_path_below_the_folder_is_below_it(root: Path) -> None:
    assert read(root, str(root / "a.md")) == "hello ä"


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nothing", "There is no 'nothing'"),
        ("a.md/below", "There is no"),
        ("x" * 300, "There is no"),
        ("docs", "no regular file"),
        ("pipe", "no regular file"),
        ("binary", "no UTF-8 text"),
        ("big", "larger than 1 MiB"),
    ],
)
def test_what_cannot_be_read_is_said(root: Path, path: str, words: str) -> None:
    os.mkfifo(root / "pipe")
    (root / "binary").write_bytes(b"\xff\xfe\x00")
    (root / "big").write_bytes(b"x" * (MAX_FILE + 1))
    with pytest.raises(Refusal, match=words):
        read(root, path)


def test_a_file_at_the_bound_is_read(root: Path) -> None:
    (root / "full").write_bytes(b"x" * MAX_FILE)
    assert len(read(root, "full")) == MAX_FILE


def test_a_folder_is_listed_with_its_folders(root: Path) -> None:
    assert listed(root) == ["a.md", "docs/"]
    assert listed(root, path="docs") == ["b.md", "deep/"]


def test_a_pattern_finds_files_at_any_depth(root: Path) -> None:
    assert listed(root, pattern="*.md") == ["a.md", "docs/b.md"]
    assert listed(root, path="docs", pattern="deep/*") == ["deep/c.txt"]
    assert listed(root, pattern="nothing*") == []


def test_a_pattern_does_not_follow_links_out(root: Path) -> None:
    (root / "folder_out").symlink_to(root.parent)
    assert listed(root, pattern="*secret*") == []


def test_a_list_is_bounded_and_says_so(root: Path) -> None:
    many = root / "many"
    many.mkdir()
    for number in range(MAX_LISTED):
        (many / f"{number:04}").touch()
    exact = list_files(root).run({"path": "many"})
    assert exact.structured is not None
    assert (len(exact.structured["files"]), exact.structured["truncated"]) == (MAX_LISTED, False)
    (many / "more").touch()
    above = list_files(root).run({"path": "many"})
    assert above.structured is not None
    assert (len(above.structured["files"]), above.structured["truncated"]) == (MAX_LISTED, True)
    assert "narrow" in above.text


def test_a_search_that_matches_little_is_bounded_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_VISITED", 2)
    structured = list_files(root).run({"pattern": "nothing"}).structured
    assert structured == {"files": [], "truncated": True}


@pytest.mark.parametrize("path", ["..", "/etc", "nothing", "a.md"])
def test_what_is_no_folder_below_is_refused(root: Path, path: str) -> None:
    for arguments in ({"path": path}, {"path": path, "pattern": "*"}):
        with pytest.raises(Refusal):
            list_files(root).run(arguments)

"""Files below allowed folders can be read, written and searched, and no others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leaseway.data_plane.kit import search
from leaseway.data_plane.kit.files import (
    MAX_FILE,
    delete_file,
    edit_file,
    get_file_info,
    read_file,
    write_file,
)
from leaseway.data_plane.kit.roots import Roots
from leaseway.data_plane.kit.search import MAX_LISTED, list_files, search_files
from leaseway.server import Tool, ToolError


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


def call(make: Callable[[Roots], Tool], root: Path, **arguments: Any) -> Any:
    function = make(Roots([root])).function
    assert function is not None
    return function(arguments)


def read(root: Path, path: str) -> str:
    text = call(read_file, root, path=path)
    assert isinstance(text, str)
    return text


def listed(root: Path, **arguments: Any) -> list[str]:
    found = call(list_files, root, **arguments).structured["files"]
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
        "\ud800",
    ],
)
def test_nothing_outside_the_folder_is_read(root: Path, path: str) -> None:
    (root / "out").symlink_to(root.parent / "secret.txt")
    (root / "folder_out").symlink_to(root.parent)
    with pytest.raises(ToolError) as caught:
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
    with pytest.raises(ToolError, match=words):
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
    exact = call(list_files, root, path="many")
    assert (len(exact.structured["files"]), exact.structured["truncated"]) == (MAX_LISTED, False)
    (many / "more").touch()
    above = call(list_files, root, path="many")
    assert (len(above.structured["files"]), above.structured["truncated"]) == (MAX_LISTED, True)
    assert "narrow" in above.text


def test_a_search_that_matches_little_is_bounded_too(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_VISITED", 2)
    structured = call(list_files, root, pattern="nothing").structured
    assert structured == {"files": [], "truncated": True}
    assert call(search_files, root, text="nothing").structured == {"matches": [], "truncated": True}


@pytest.mark.parametrize("path", ["..", "/etc", "nothing", "a.md"])
def test_what_is_no_folder_below_is_refused(root: Path, path: str) -> None:
    for arguments in ({"path": path}, {"path": path, "pattern": "*"}):
        with pytest.raises(ToolError):
            call(list_files, root, **arguments)


def test_lines_that_hold_a_text_are_found_with_their_numbers(root: Path) -> None:
    (root / "docs" / "b.md").write_text("one\nTwo words\n")
    (root / "binary").write_bytes(b"two\xff")
    found = call(search_files, root, text="two", ignore_case=True)
    assert found.structured == {
        "matches": [{"path": "docs/b.md", "line": 2, "text": "Two words"}],
        "truncated": False,
    }
    assert found.text == "docs/b.md:2: Two words"
    assert call(search_files, root, text="two").structured["matches"] == []
    assert call(search_files, root, text="Two", pattern="*.txt").structured["matches"] == []


def test_a_file_is_written_as_a_whole_and_keeps_its_permissions(root: Path) -> None:
    (root / "a.md").chmod(0o640)
    inode = (root / "a.md").stat().st_ino
    assert call(write_file, root, path="a.md", content="ä") == "Wrote 2 bytes to a.md."
    assert (root / "a.md").read_text() == "ä"
    assert (root / "a.md").stat().st_mode & 0o777 == 0o640
    assert (root / "a.md").stat().st_ino != inode
    assert listed(root) == ["a.md", "docs/"]


def test_folders_on_the_way_are_made_only_when_asked_for(root: Path) -> None:
    with pytest.raises(ToolError, match="There is no 'new/x/f'"):
        call(write_file, root, path="new/x/f", content="1")
    assert not (root / "new").exists()
    call(write_file, root, path="new/x/f", content="1", create_folders=True)
    assert read(root, "new/x/f") == "1"


def test_writing_to_a_hard_link_leaves_the_other_name_alone(root: Path) -> None:
    os.link(root.parent / "secret.txt", root / "hard")
    call(write_file, root, path="hard", content="mine")
    assert (root.parent / "secret.txt").read_text() == "hidden"


def test_edits_are_made_together_or_not_at_all(root: Path) -> None:
    (root / "a.md").write_text("one two\nthree\n")
    edits = [{"old": "one", "new": "1"}, {"old": "three", "new": "3"}]
    shown = call(edit_file, root, path="a.md", edits=edits, dry_run=True)
    assert "-one two" in shown
    assert "+1 two" in shown
    assert read(root, "a.md") == "one two\nthree\n"
    call(edit_file, root, path="a.md", edits=edits)
    assert read(root, "a.md") == "1 two\n3\n"
    for old, times in (("absent", 0), ("\n", 2)):
        with pytest.raises(ToolError, match=f"Edit 2 does not fit: its 'old' occurs {times} times"):
            call(
                edit_file,
                root,
                path="a.md",
                edits=[{"old": "two", "new": "2"}, {"old": old, "new": "x"}],
            )
    assert read(root, "a.md") == "1 two\n3\n"


def test_deleting_a_link_deletes_the_link(root: Path) -> None:
    (root / "out").symlink_to(root.parent / "secret.txt")
    call(delete_file, root, path="out")
    assert (root.parent / "secret.txt").exists()
    assert not (root / "out").is_symlink()
    call(delete_file, root, path="a.md")
    assert listed(root) == ["docs/"]
    with pytest.raises(ToolError, match="no regular file"):
        call(delete_file, root, path="docs")


def test_information_tells_what_is_there(root: Path) -> None:
    (root / "a.md").chmod(0o600)
    info = call(get_file_info, root, path="a.md").structured
    assert info["type"] == "file"
    assert info["size"] == 8  # bytes
    assert info["permissions"] == "-rw-------"
    assert info["modified"].endswith("+00:00")
    assert call(get_file_info, root, path=".").structured["type"] == "folder"


def test_relative_paths_start_in_the_first_folder_and_absolute_ones_may_be_in_any(
    root: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "s.md").write_text("second")
    (root / "across").symlink_to(second / "s.md")
    function = read_file(Roots([root, second])).function
    assert function is not None
    assert function({"path": "a.md"}) == "hello ä"
    assert function({"path": str(second / "s.md")}) == "second"
    assert function({"path": "across"}) == "second"
    with pytest.raises(ToolError, match=r"There is no 's\.md'"):
        function({"path": "s.md"})


def test_names_that_are_no_utf8_are_listed_with_question_marks(root: Path) -> None:
    (root / os.fsdecode(b"caf\xe9")).touch()
    assert "caf?" in listed(root)


def test_half_of_a_surrogate_pair_is_not_written(root: Path) -> None:
    with pytest.raises(ToolError, match="surrogate"):
        call(write_file, root, path="half", content="\ud800")
    assert "half" not in listed(root)

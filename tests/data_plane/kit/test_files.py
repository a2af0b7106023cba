"""The file tools work in the allowed folders, and reach nothing outside."""

from __future__ import annotations

import os
import tracemalloc
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
from leaseway.data_plane.kit.roots import AllowedFolders
from leaseway.data_plane.kit.search import MAX_LISTED, list_files, search_files
from leaseway.server import Tool, ToolError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An allowed folder with files, next to files that must stay hidden."""
    served = tmp_path / "served"
    (served / "docs" / "deep").mkdir(parents=True)
    (served / "a.md").write_text("hello ä")
    (served / "docs" / "b.md").write_text("b")
    (served / "docs" / "deep" / "c.txt").write_text("c")
    (tmp_path / "secret.txt").write_text("hidden")
    (tmp_path / "served-too").mkdir()
    (tmp_path / "served-too" / "x").write_text("hidden")
    return served.resolve()


def call(build: Callable[[AllowedFolders], Tool], root: Path, **arguments: Any) -> Any:
    function = build(AllowedFolders([root])).function
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


def test_an_absolute_path_in_the_folder_is_read(root: Path) -> None:
    assert read(root, str(root / "a.md")) == "hello ä"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nothing", "'nothing' does not exist"),
        ("a.md/below", "does not exist"),
        ("x" * 300, "does not exist"),
        ("docs", "no regular file"),
        ("pipe", "no regular file"),
        ("binary", "no UTF-8 text"),
        ("big", "larger than 1 MiB"),
    ],
)
def test_an_unreadable_file_is_an_error(root: Path, path: str, message: str) -> None:
    os.mkfifo(root / "pipe")
    (root / "binary").write_bytes(b"\xff\xfe\x00")
    (root / "big").write_bytes(b"x" * (MAX_FILE + 1))
    with pytest.raises(ToolError, match=message):
        read(root, path)


def test_a_file_at_the_size_limit_is_read(root: Path) -> None:
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


def test_a_list_is_truncated_at_its_limit(root: Path) -> None:
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


def test_a_search_stops_at_its_limit_of_visited_files(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_VISITED", 2)
    structured = call(list_files, root, pattern="nothing").structured
    assert structured == {"files": [], "truncated": True}
    assert call(search_files, root, text="nothing").structured == {"matches": [], "truncated": True}


def test_a_search_stops_at_its_limit_of_bytes_also_in_files_that_are_no_text(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MAX_SEARCHED", 2_000)
    for number in range(2):
        (root / f"{number}.jpg").write_bytes(b"\xff" * 1_000)
    assert call(search_files, root, text="hello").structured == {"matches": [], "truncated": True}


def test_a_search_keeps_no_more_matches_of_a_file_than_it_returns(root: Path) -> None:
    (root / "long").write_text("a\n" * (MAX_FILE // 2))
    tracemalloc.start()
    try:
        found = call(search_files, root, text="a", pattern="long").structured
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(found["matches"]), found["truncated"]) == (200, True)
    assert peak < 16 * MAX_FILE


@pytest.mark.parametrize("path", ["..", "/etc", "nothing", "a.md"])
def test_listing_anything_but_an_allowed_folder_is_an_error(root: Path, path: str) -> None:
    for arguments in ({"path": path}, {"path": path, "pattern": "*"}):
        with pytest.raises(ToolError):
            call(list_files, root, **arguments)


def test_matching_lines_are_found_with_their_numbers(root: Path) -> None:
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


def test_a_file_is_replaced_atomically_and_keeps_its_permissions(root: Path) -> None:
    (root / "a.md").chmod(0o640)
    inode = (root / "a.md").stat().st_ino
    assert call(write_file, root, path="a.md", content="ä") == "Wrote 2 bytes to a.md."
    assert (root / "a.md").read_text() == "ä"
    assert (root / "a.md").stat().st_mode & 0o777 == 0o640
    assert (root / "a.md").stat().st_ino != inode
    assert listed(root) == ["a.md", "docs/"]


def test_missing_folders_are_created_only_on_request(root: Path) -> None:
    with pytest.raises(ToolError, match="'new/x/f' does not exist"):
        call(write_file, root, path="new/x/f", content="1")
    assert not (root / "new").exists()
    call(write_file, root, path="new/x/f", content="1", create_folders=True)
    assert read(root, "new/x/f") == "1"


def test_writing_to_a_hard_link_does_not_change_the_other_name(root: Path) -> None:
    os.link(root.parent / "secret.txt", root / "hard")
    call(write_file, root, path="hard", content="mine")
    assert (root.parent / "secret.txt").read_text() == "hidden"


def test_edits_are_atomic(root: Path) -> None:
    (root / "a.md").write_text("one two\nthree\n")
    edits = [{"old": "one", "new": "1"}, {"old": "three", "new": "3"}]
    shown = call(edit_file, root, path="a.md", edits=edits, dry_run=True)
    assert "-one two" in shown
    assert "+1 two" in shown
    assert read(root, "a.md") == "one two\nthree\n"
    call(edit_file, root, path="a.md", edits=edits)
    assert read(root, "a.md") == "1 two\n3\n"
    for old, times in (("absent", 0), ("\n", 2)):
        with pytest.raises(ToolError, match=f"Edit 2 failed: its 'old' occurs {times} times"):
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


def test_file_information_has_type_size_and_permissions(root: Path) -> None:
    (root / "a.md").chmod(0o600)
    info = call(get_file_info, root, path="a.md").structured
    assert info["type"] == "file"
    assert info["size"] == 8  # bytes
    assert info["permissions"] == "-rw-------"
    assert info["modified"].endswith("+00:00")
    assert call(get_file_info, root, path=".").structured["type"] == "folder"


def test_relative_paths_start_in_the_first_folder_and_absolute_paths_in_any(
    root: Path, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "s.md").write_text("second")
    (root / "across").symlink_to(second / "s.md")
    function = read_file(AllowedFolders([root, second])).function
    assert function is not None
    assert function({"path": "a.md"}) == "hello ä"
    assert function({"path": str(second / "s.md")}) == "second"
    assert function({"path": "across"}) == "second"
    with pytest.raises(ToolError, match=r"'s\.md' does not exist"):
        function({"path": "s.md"})


def test_names_without_valid_utf8_are_listed_with_question_marks(root: Path) -> None:
    (root / os.fsdecode(b"caf\xe9")).touch()
    assert "caf?" in listed(root)


def test_text_without_valid_utf8_is_not_written(root: Path) -> None:
    with pytest.raises(ToolError, match="surrogate"):
        call(write_file, root, path="half", content="\ud800")
    assert "half" not in listed(root)


@pytest.mark.parametrize(("first", "second"), [(2, 4), (5_000, 5_001), (20_000, 20_000)])
def test_the_difference_of_an_edit_has_its_lines_in_the_whole_file(
    root: Path, first: int, second: int
) -> None:
    lines = [str(number % 300) for number in range(20_000)]
    lines[first - 1], lines[second - 1] = "first", "second"
    (root / "column").write_text("\n".join(lines))
    edits = [{"old": "second", "new": "2nd\nnew"}]
    shown = call(edit_file, root, path="column", edits=edits, dry_run=True).split("\n")
    before = min(second - 1, 3)
    after = min(20_000 - second, 3)
    at, count = second - before, before + after
    assert shown[2] == f"@@ -{at},{count + 1} +{at},{count + 2} @@"
    assert shown[3 + before :][:3] == ["-second", "+2nd", "+new"]
    assert len(shown) == 3 + count + 3


def test_a_difference_that_is_too_long_to_compare_is_told_by_its_lines(root: Path) -> None:
    lines = ["first", *(str(number % 300) for number in range(20_000)), "last"]
    (root / "column").write_text("\n".join(lines))
    edits = [{"old": "first", "new": "1st"}, {"old": "last", "new": "end"}]
    shown = call(edit_file, root, path="column", edits=edits)
    assert shown == "Lines 1 to 20002 have changed."


def test_lines_of_matches_are_counted_by_line_breaks_alone(root: Path) -> None:
    (root / "page.txt").write_bytes("a\x0cb\u2028c\r\nd\n".encode())
    result = call(search_files, root, text="d")
    assert result.structured["matches"] == [{"path": "page.txt", "line": 2, "text": "d"}]

"""Tables and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from leaseway.cli.output import print_json, print_table


@dataclass(frozen=True)
class _Item:
    name: str
    when: datetime
    tags: tuple[str, ...]
    _hidden: int = 0


ITEM = _Item("ä", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), ("x", "y"))


def test_json_has_the_public_fields_of_dataclasses(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([ITEM, {"raw": b"bytes"}])
    assert json.loads(capsys.readouterr().out) == [
        {"name": "ä", "when": "2026-01-02T03:04:05+00:00", "tags": ["x", "y"]},
        {"raw": "bytes"},
    ]


def test_a_piped_table_is_neither_wrapped_nor_cut(capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 100
    print_table(("NAME", "SHARED", "TEXT"), [("a", True, long), ("bb", False, None)], "Nothing.")
    assert capsys.readouterr().out.splitlines() == [
        "NAME  SHARED  TEXT",
        f"a     yes     {long.strip()}",
        "bb    no      -",
    ]


def test_line_breaks_in_a_cell_stay_in_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A",), [("one\ntwo",)], "Nothing.")
    assert capsys.readouterr().out == "A\none two\n"


def test_an_empty_table_says_so_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A",), [], "Nothing.")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Nothing.\n")


def test_a_terminal_gets_a_drawn_table_without_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(("NAME",), [("[bold]x[/bold]",)], "Nothing.")
    out = capsys.readouterr().out
    assert "[bold]x[/bold]" in out
    assert "NAME" in out

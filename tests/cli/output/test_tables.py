"""Tables and JSON."""

from __future__ import annotations

import io
import json
import unicodedata
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import UTC, datetime

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.cli.output.tables import print_json, print_table
from leaseway.wire.text.visible_text import visible


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


def test_line_breaks_in_a_cell_become_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A",), [("one\ntwo",)], "Nothing.")
    assert capsys.readouterr().out == "A\none two\n"


def test_control_characters_in_a_cell_become_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME"], [["a\x1b]0;title\x07b\x9bc\u202ed"]], "none")
    assert capsys.readouterr().out == "NAME\na ]0;title b c d\n"


def test_an_empty_table_prints_a_sentence_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A",), [], "Nothing.")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "Nothing.\n")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make stdout a terminal with a number of columns."""

    def narrow(columns: int) -> None:
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))

    return narrow


HEADERS = ("NAME", "FAULT", "COUNT", "TEXT")
LONG = ("a-name-of-some-length", None, 0, "A sentence that is longer than the others.")


def _shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return click.unstyle(capsys.readouterr().out).splitlines()


def test_a_terminal_that_is_wide_enough_shows_each_column(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(90)
    print_table(HEADERS, [LONG], "Nothing.")
    header, _, row = _shown(capsys)
    assert header.split() == list(HEADERS)
    assert row.split()[:3] == [LONG[0], "-", "0"]
    assert row.rstrip().endswith("than the others.")


def test_a_narrow_terminal_omits_blank_columns_and_wraps_wide_ones(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(44)
    print_table(HEADERS, [("x" * 60, *LONG[1:])], "Nothing.")
    header, _, *lines = _shown(capsys)
    assert header.split() == ["NAME", "TEXT"]
    assert max(map(len, lines)) <= 44
    assert sum(line.count("x") for line in lines) == 60
    words = " ".join(lines).replace("x", "").split()
    assert " ".join(words) == LONG[3]


def test_a_terminal_that_is_too_narrow_gets_a_line_for_each_value(
    capsys: pytest.CaptureFixture[str], terminal: Callable[[int], None]
) -> None:
    terminal(32)
    print_table(HEADERS, [LONG, ("b", "x", 2, "Short.")], "Nothing.")
    lines = _shown(capsys)
    assert lines[0].split() == ["NAME", LONG[0]]
    assert [line.split()[0] for line in lines[-6:] if line.strip()] == list(HEADERS)
    assert max(map(len, lines)) <= 32


@pytest.mark.parametrize("columns", [1, 10])
def test_a_terminal_in_which_nothing_can_be_read_gets_plain_columns(
    terminal: Callable[[int], None], capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    terminal(columns)
    print_table(("ID", "STATE"), [("files", "ready")], "None.")
    assert capsys.readouterr().out == "ID     STATE\nfiles  ready\n"


def test_json_for_an_encoding_without_the_character_stays_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    monkeypatch.setattr("sys.stdout", out)
    print_json({"price": "5 €"})
    out.flush()
    assert json.loads(out.buffer.getvalue()) == {"price": "5 €"}


def test_a_terminal_gets_a_drawn_table_without_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(("NAME",), [("[bold]x[/bold]",)], "Nothing.")
    out = capsys.readouterr().out
    assert "[bold]x[/bold]" in out
    assert "NAME" in out


def test_control_characters_in_a_text_are_escaped() -> None:
    assert visible("a\x1b]0;t\x07\x9b2J\u202eb\rc") == r"a\x1b]0;t\x07\x9b2J\u202eb\x0dc"
    plain_text = "ä\tb\r\nc\n\u05d0 \U0001f469\u200d\U0001f680"
    assert visible(plain_text) == plain_text


@settings(max_examples=50, deadline=None)
@given(text=st.text())
def test_no_text_or_json_has_control_characters(text: str) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        print_json({"said": text})
    for shown in (visible(text), out.getvalue()):
        rest = shown.replace("\r\n", "").replace("\n", "").replace("\t", "")
        assert not [character for character in rest if unicodedata.category(character) == "Cc"]
        assert not [
            character for character in rest if unicodedata.bidirectional(character) in _TURNING
        ]
    assert json.loads(out.getvalue()) == {"said": text}


_TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}

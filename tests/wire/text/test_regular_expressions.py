"""Which regular expressions JavaScript reads with the flag `u`."""

from __future__ import annotations

import time

import pytest

from leaseway.wire.text.regular_expressions import has_lookaround, is_javascript


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[A-Za-z0-9_.+-]+@[a-z\-]+\.[a-z]{2,}$",
        r"(?<year>\d{4})-\k<year>(?:x|y)*?(z)\2",
        r"^(?!\.)(?=a)(?<!b)(?<=c)$",
        r"[\p{L}\p{Script=Greek}\d][^\]\\]\P{Lu}",
        r"\u{1F600}\uD83D\x41\cJ\0[\b]",
        r"[a-]|[-a]|[]|[^]|",
        "\N{GRINNING FACE}{2}",
    ],
)
def test_what_javascript_reads_is_a_regular_expression(pattern: str) -> None:
    assert is_javascript(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(?P<id>a)",
        r"(?i)a",
        r"a\Z",
        r"\A",
        r"a\-b",
        r"[\w\@]",
        r"[\w-z]",
        r"[z-a]",
        r"a++",
        r"(?>a)",
        r"*a",
        r"(?=a)*",
        r"^*",
        r"a{2,1}",
        r"a{",
        r"]",
        r"(",
        r")",
        r"[a",
        "\\",
        r"\1",
        r"\k<a>",
        r"(?<a>)(?<a>)",
        r"\p{IsAlphabetic}",
        r"\01",
    ],
)
def test_what_other_languages_read_is_none(pattern: str) -> None:
    assert not is_javascript(pattern)


@pytest.mark.parametrize(
    ("pattern", "looks_around"),
    [
        (r"^(?!\.)a", True),
        (r"a(?<=b)", True),
        (r"\\(?=a)", True),
        (r"\(?=a", False),
        (r"[(?=]", False),
        (r"(?<name>a)(?:b)", False),
    ],
)
def test_lookaround_is_found(pattern: str, looks_around: bool) -> None:
    assert has_lookaround(pattern) is looks_around


def test_classes_without_an_end_take_no_time_that_grows_with_their_square() -> None:
    began = time.process_time()
    assert not has_lookaround("[" * 100_000)
    assert time.process_time() - began < 1.0

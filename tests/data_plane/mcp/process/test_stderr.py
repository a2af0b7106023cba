"""The tail of a server's standard error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.data_plane.mcp.stderr import StderrTail, significant_line


def test_the_last_lines_are_kept_the_oldest_first() -> None:
    tail = StderrTail(lines=3)
    tail.feed(b"1\n2\n3\n4\r\nhalf")
    assert tail.lines() == ["2", "3", "4", "half"]
    assert tail.last(lines=2, size=100) == "4\nhalf"
    assert tail.last(lines=2, size=3) == "alf"


def test_a_line_at_the_limit_is_whole_and_a_longer_one_is_cut() -> None:
    tail = StderrTail(line_bytes=10)
    tail.feed(b"x" * 10 + b"\n" + b"y" * 11 + b"\n" + b"z" * 1_000_000 + b"\n")
    first, second, third = tail.lines()
    assert first == "x" * 10
    assert (second, third) == ("y" * 7 + "…", "z" * 7 + "…")


@given(st.integers(0, 30), st.integers(1, 7))
def test_a_secret_is_hidden_at_any_offset_and_in_pieces(offset: int, piece: int) -> None:
    tail = StderrTail(["s3cret"], line_bytes=20)
    data = b"x" * offset + b"s3cret" + b"y" * 10 + b"\n"
    for start in range(0, len(data), piece):
        tail.feed(data[start : start + piece])
    assert "s3cret" not in tail.lines()[0]
    assert "s3cre" not in tail.lines()[0]


def test_each_line_of_a_multiline_secret_is_hidden() -> None:
    tail = StderrTail(["-----BEGIN\nabcdefgh\n"])
    tail.feed(b"got abcdefgh here\n")
    assert tail.lines() == ["got [hidden] here"]


def test_a_secret_that_contains_another_is_hidden_whole() -> None:
    tail = StderrTail(["pass", "password"])
    tail.feed(b"a password\n")
    assert tail.lines() == ["a [hidden]"]


def test_values_too_short_to_be_secrets_are_not_hidden() -> None:
    tail = StderrTail(["a", ""])
    tail.feed(b"banana\n")
    assert tail.lines() == ["banana"]


def test_secrets_can_be_added_later() -> None:
    tail = StderrTail(["first1"])
    tail.hide(["second2"])
    tail.feed(b"first1 second2\n")
    assert tail.lines() == ["[hidden] [hidden]"]


def test_invalid_utf8_is_replaced() -> None:
    tail = StderrTail()
    tail.feed(b"\xff\xfe ok\n")
    assert tail.lines()[0].endswith(" ok")


def test_a_watcher_receives_whole_lines_without_secrets() -> None:
    lines: list[str] = []
    tail = StderrTail(["hunter22"])
    tail.feed(b"before\n")
    tail.watch(lines.append)
    tail.feed(b"pass hun")
    tail.feed(b"ter22\nnext")
    assert lines == ["pass [hidden]"]


def test_blank_lines_are_not_among_the_last_lines() -> None:
    tail = StderrTail()
    tail.feed(b" \n\t\n\r\n   ")
    assert tail.last(lines=10, size=2048) == ""
    tail.feed(b"\nno disk\n" + b" \n" * 15)
    assert tail.last(lines=10, size=2048) == "no disk"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            (
                "npm error code E404\nnpm error 404 Not Found - GET https://r/x - Not found\n"
                "npm error 404\nnpm error 404  'x@*' is not in this registry.\nnpm error 404\n"
                "npm error 404 Note that you can also install from a\n"
                "npm error 404 tarball, folder, http url, or git folder.\n"
                "npm notice\nnpm notice New version of npm available!\n"
                "npm error A complete log of this run can be found in: /h/_logs/1-debug-0.log"
            ),
            "npm error 404 'x@*' is not in this registry.",
        ),
        (
            (
                "npm error code ETARGET\nnpm error notarget No matching version found for x@9.\n"
                "npm error notarget In most cases you or one of your dependencies are requesting\n"
                "npm error notarget a package version that doesn't exist.\n"
            ),
            "npm error notarget No matching version found for x@9.",
        ),
        ("TypeError: no\n    at run (x.js:1)\n\nNode.js v20.1.0\n", "TypeError: no"),
        ("docker: no such image.\nSee 'docker run --help'.\n", "docker: no such image."),
        ("a\n\nRun 'docker run --help' for more information", "a"),
        ("npm notice only", "npm notice only"),
        ("npm warn deprecated x@1: Use the platform's DOMException\nStarted", "Started"),
        (
            "usage: s [-h]\ns: error: unrecognized arguments: --x",
            "s: error: unrecognized arguments: --x",
        ),
        (
            "error: unknown option '--x'\n\nUsage: s [options]\n\nOptions:\n  -h  show help",
            "error: unknown option '--x'",
        ),
        (
            (
                "error: unexpected argument '--x' found\n\nUsage: s <FILE>\n\n"
                "For more information, try '--help'.\n"
            ),
            "error: unexpected argument '--x' found",
        ),
        (
            "flag provided but not defined: -x\nUsage of server:\n  -port int\n    \tthe port\n",
            "flag provided but not defined: -x",
        ),
        ("Usage: s DIRECTORY [DIRECTORY ...]\n", "Usage: s DIRECTORY [DIRECTORY ...]"),
        (
            (
                "node:internal/modules/cjs/loader:1148\n  throw err;\n  ^\n\n"
                "Error: Cannot find module '/s.js'\n    at f (node:x:1:2) {\n"
                "  code: 'MODULE_NOT_FOUND',\n  requireStack: []\n}\n\nNode.js v20.20.2\n"
            ),
            "Error: Cannot find module '/s.js'",
        ),
        (
            (
                'Traceback (most recent call last):\n  File "s.py", line 1, in <module>\n'
                "KeyError: 'TOKEN'\n"
            ),
            "KeyError: 'TOKEN'",
        ),
        (
            "panic: no licence\n\ngoroutine 1 [running]:\nm.main()\n\t/s.go:5\nexit status 2\n",
            "panic: no licence",
        ),
        (
            (
                "thread 'main' panicked at src/main.rs:4:5:\nno licence\n"
                "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n"
            ),
            "no licence",
        ),
        ("Error: no disk\nINFO 0 requests failed\nshutting down", "Error: no disk"),
        (
            (
                "[11/30/26 01:55:00] ERROR    The database at db.example.com       s.py:7\n"
                f"{' ' * 29}refused the connection:              \n{' ' * 29}no such user\n"
                f"{' ' * 20}INFO     Shutting down                        s.py:9\n"
            ),
            (
                "[11/30/26 01:55:00] ERROR The database at db.example.com s.py:7 refused the"
                " connection: no such user"
            ),
        ),
        (
            "error: No solution found\n  cause: Because all versions of s were yanked, none fits.",
            "error: No solution found cause: Because all versions of s were yanked, none fits.",
        ),
        (
            "error: arguments were not provided:\n  --token <TOKEN>\n\nUsage: s --token <TOKEN>\n",
            "error: arguments were not provided: --token <TOKEN>",
        ),
        (
            (
                "pydantic_core.ValidationError: 1 validation error for Settings\napi_key\n"
                "  Field required [type=missing, input_value={}, input_type=dict]\n"
            ),
            "api_key Field required [type=missing, input_value={}, input_type=dict]",
        ),
        (
            'ZodError: [\n  {\n    "path": ["TOKEN"],\n    "message": "Required"\n  }\n]',
            'ZodError: [ "path": ["TOKEN"], "message": "Required"',
        ),
        (
            f"Configuration:\n{'  mode: quiet' * 30}\n  token: missing\n  port: 1\n",
            "Configuration: … token: missing",
        ),
        (
            (
                "Starting\n  + Exception Group Traceback (most recent call last):\n"
                '  |   File "s.py", line 1\n  | ValueError: no licence\n  +------\n'
            ),
            "| ValueError: no licence",
        ),
        ("bye", "bye"),
        ("See 'x --help'.\n \n\n", "See 'x --help'."),
    ],
)
def test_the_significant_line_is_not_a_pointer_to_a_log_or_help(words: str, line: str) -> None:
    assert significant_line(words) == line


def test_the_cause_is_found_before_a_long_help_text() -> None:
    tail = StderrTail()
    options = "".join(f"  --option-{number}  what it does\n" for number in range(40))
    tail.feed(f"error: unknown option '--x'\nUsage: s [options]\nOptions:\n{options}".encode())
    assert tail.cause == "error: unknown option '--x'"
    assert StderrTail().cause == ""


def test_a_line_from_elsewhere_is_kept_beside_an_unfinished_one() -> None:
    tail = StderrTail(["s3cret"])
    tail.feed(b"half")
    tail.add_line(b"needs s3cret")
    tail.feed(b" a line\n")
    assert tail.lines() == ["needs [hidden]", "half a line"]


@given(st.integers(0, 12), st.integers(1, 40))
def test_of_a_flood_the_same_lines_are_kept_however_it_is_read(count: int, piece: int) -> None:
    data = b"begun" + b"".join(b"%d\n" % number for number in range(count)) + b"half"
    whole, parts = StderrTail(lines=3), StderrTail(lines=3)
    whole.feed(data)
    for start in range(0, len(data), piece):
        parts.feed(data[start : start + piece])
    assert whole.lines() == parts.lines()

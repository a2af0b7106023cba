"""Log lines: destination, fields and redaction."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO
from weakref import WeakValueDictionary

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from leaseway.telemetry import logs
from leaseway.vault.key import VaultPlace, read_keys, write_keys
from leaseway.wire.channels.auth import KEY_VARIABLE, read_key
from leaseway.wire.secrets import redaction

SPAN = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
logger = logging.getLogger("leaseway.test")


@pytest.fixture(autouse=True)
def restored_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # pytest's own stay open: configure_logging closes what it removes
    monkeypatch.setattr(redaction, "_hidden", WeakValueDictionary())
    monkeypatch.setattr(redaction, "_sources", {})
    monkeypatch.setattr(redaction, "_current", ())
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "leaseway.log"


def test_a_json_line_is_one_object_with_time_fields_and_the_span(path: Path) -> None:
    logs.configure_logging("info", "json", str(path), "worker w1")
    with trace.use_span(SPAN):
        logger.info("Started %s.", "time", extra={"server": "time", "pid": 7})

    [line] = path.read_text().splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "service": "worker w1",
        "logger": "leaseway.test",
        "message": "Started time.",
        "server": "time",
        "pid": 7,
        "trace_id": f"{0xABC:032x}",
        "span_id": f"{0xDEF:016x}",
    }


def test_a_text_line_has_the_same_fields(path: Path) -> None:
    logs.configure_logging("info", "text", str(path), "worker w1")
    with trace.use_span(SPAN):
        logger.warning("Two\nlines.", extra={"server": "time", "why": "a b"})

    [line] = path.read_text().splitlines()
    assert 'WARNING worker w1: Two\\nlines. server=time why="a b" trace_id=' in line


def test_a_text_line_contains_no_terminal_escapes(path: Path) -> None:
    logs.configure_logging("info", "text", str(path), "x")
    logger.info("Said %s", "a\x1b[2J\x9b\u202eb", extra={"why": "\x1bc"})
    assert "Said a\\x1b[2J\\x9b\\u202eb why=\\x1bc" in path.read_text()


def test_a_file_name_that_is_not_utf_8_costs_no_line(path: Path) -> None:
    logs.configure_logging("info", "text", str(path), "worker w1")
    logging.getLogger("leaseway").warning("%s is gone", os.fsdecode(b"caf\xe9"))
    assert "caf\\udce9 is gone" in path.read_text()


def test_lines_below_the_level_are_dropped(path: Path) -> None:
    logs.configure_logging("warning", "text", str(path), "x")
    logger.info("quiet")
    assert path.read_text() == ""


def test_a_new_file_is_private_and_an_existing_one_keeps_its_mode(path: Path) -> None:
    before = os.umask(0o022)
    try:
        logs.configure_logging("info", "text", str(path), "x")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o640)
        logs.configure_logging("info", "text", str(path), "x")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(before)


def test_a_renamed_file_is_followed_by_a_new_private_one(path: Path) -> None:
    logs.configure_logging("info", "text", str(path), "x")
    logger.info("before")
    rotated = path.rename(path.with_suffix(".1"))
    logger.info("after")
    assert "after" not in rotated.read_text()
    assert "after" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_truncated_file_is_continued_at_its_beginning(path: Path) -> None:
    logs.configure_logging("info", "text", str(path), "x")
    logger.info("before")
    os.truncate(path, 0)
    logger.info("after")
    assert path.read_text().startswith("2")
    assert "after" in path.read_text()


def test_a_folder_that_is_gone_costs_lines_and_no_call(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure_logging("info", "text", str(path), "x")
    moved = path.parent.rename(path.parent.with_name("elsewhere"))
    for number in range(2):
        logger.info("lost %d", number)
    assert capsys.readouterr().err.count(f"was not written to {path}: No such file") == 2
    moved.rename(path.parent)
    logger.info("again")
    assert "again" in path.read_text()


def test_without_a_file_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure_logging("info", "text", None, "x")
    logger.info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hello" in captured.err


@pytest.fixture
def unread() -> Iterator[tuple[TextIO, int]]:
    """A stream to a pipe of four pages, and the descriptor that reads it."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4 * logs._PIECE)
    os.set_blocking(reader, False)
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield logs.unwaiting(stream), reader
    os.close(reader)


def test_a_line_that_nobody_reads_is_dropped_and_told(
    unread: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, reader = unread
    monkeypatch.setattr(sys, "stderr", stream)
    logs.configure_logging("info", "text", None, "x")
    for number in range(40):
        logger.info("%d %s", number, "x" * 1000)
    first = os.read(reader, 1 << 16).decode().splitlines()
    logger.info("again")
    then = os.read(reader, 1 << 16).decode().splitlines()
    kept = sum(line.endswith("x" * 1000) for line in first)
    assert 0 < kept < 40
    assert f"Lost {40 - kept} lines" in then[0]
    assert then[-1].endswith("again")
    assert len(then) == 2


def test_a_line_that_was_cut_off_does_not_run_into_the_next(unread: tuple[TextIO, int]) -> None:
    stream, reader = unread
    stream.write("x" * 9 * logs._PIECE + "\n")
    assert os.read(reader, 1 << 16) == b"x" * 4 * logs._PIECE
    stream.write("next\n")
    assert os.read(reader, 1 << 16) == b"\nnext\n"


def test_a_file_is_written_as_it_is(path: Path) -> None:
    with path.open("w") as file:
        assert logs.unwaiting(file) is file


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_a_hidden_value_never_appears(path: Path, fmt: logs.LogFormat) -> None:
    secret = 'pa"ss\\word'
    redaction.hide({secret}, "somewhere")
    logs.configure_logging("info", fmt, str(path), "x")
    try:
        raise RuntimeError(f"denied: {secret}")
    except RuntimeError:
        logger.exception("With %s.", secret, extra={"list": [secret], "map": {"k": secret}})

    text = path.read_text()
    assert text.count("[redacted]") == 4
    assert "word" not in text


def test_a_value_that_contains_another_is_redacted_whole() -> None:
    kept = redaction.hide({"abcd-1", "abcd-1234"})
    assert redaction.redact("abcd-1234 abcd-1") == "[redacted] [redacted]"
    del kept


def test_short_and_common_values_are_not_redacted() -> None:
    kept = redaction.hide({"on", "a-1", "prod", "8080", "worker", ""})
    assert (
        redaction.redact("one a-1 of prod on worker w1:8080") == "one a-1 of prod on worker w1:8080"
    )
    del kept


def test_a_value_is_redacted_while_it_is_referenced() -> None:
    first, again = redaction.hide({"value-1"}), redaction.hide({"value-1"})
    del first
    assert redaction.redact("value-1") == "[redacted]"
    del again
    kept = redaction.hide({"value-2"})
    assert redaction.redact("value-1 value-2") == "value-1 [redacted]"
    del kept


def test_rereading_a_source_replaces_its_hidden_values() -> None:
    redaction.hide({"old-key"}, "the key file")
    redaction.hide({"other-key"}, "another file")
    redaction.hide({"new-key"}, "the key file")
    assert redaction.redact("old-key new-key other-key") == "old-key [redacted] [redacted]"


def test_keys_read_by_a_process_are_redacted(path: Path, tmp_path: Path) -> None:
    key_file = tmp_path / "vault.key"
    write_keys(key_file, ["the key of this vault"])
    read_key({KEY_VARIABLE: "shared-key-77"})
    read_keys(VaultPlace(tmp_path / "vault", key_file))
    read_keys(VaultPlace(tmp_path / "vault", key_file, "a passphrase in a variable"))
    logs.configure_logging("info", "text", str(path), "x")
    logger.info("shared-key-77, the key of this vault, a passphrase in a variable")
    assert path.read_text().endswith("x: [redacted], [redacted], [redacted]\n")


def test_an_unknown_level_is_rejected_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        logs.configure_logging("loud", "text", None, "x")


def test_configuring_twice_writes_each_line_once(path: Path) -> None:
    logs.configure_logging("info", "text", str(path), "x")
    logs.configure_logging("info", "text", str(path), "x")
    logger.info("once")
    assert len(path.read_text().splitlines()) == 1


def test_overlapping_values_are_redacted_as_one() -> None:
    kept = redaction.hide({"abcd-1234", "1234-efgh"})
    assert redaction.redact("x abcd-1234-efgh y abcd-1234") == "x [redacted] y [redacted]"
    del kept

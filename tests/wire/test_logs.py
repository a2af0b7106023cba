"""Log lines: where they go, what they carry, and what never appears in them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from leaseway.wire import logs

SPAN = NonRecordingSpan(SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1)))
logger = logging.getLogger("leaseway.test")


@pytest.fixture(autouse=True)
def restored_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # pytest's own stay open: configure_logging closes what it removes
    monkeypatch.setattr(logs, "_secrets", ())
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


def test_a_text_line_holds_the_same_facts(path: Path) -> None:
    logs.configure_logging("info", "text", str(path), "worker w1")
    with trace.use_span(SPAN):
        logger.warning("Two\nlines.", extra={"server": "time", "why": "a b"})

    [line] = path.read_text().splitlines()
    assert 'WARNING worker w1: Two\\nlines. server=time why="a b" trace_id=' in line


def test_lines_below_the_level_are_dropped(path: Path) -> None:
    logs.configure_logging("warning", "text", str(path), "x")
    logger.info("quiet")
    assert path.read_text() == ""


def test_without_a_file_lines_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure_logging("info", "text", None, "x")
    logger.info("hello")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hello" in captured.err


@pytest.mark.parametrize("fmt", ["text", "json"])
def test_a_registered_secret_never_appears(path: Path, fmt: logs.LogFormat) -> None:
    secret = 'pa"ss\\word'
    logs.register_secret(secret)
    logs.configure_logging("info", fmt, str(path), "x")
    try:
        raise RuntimeError(f"denied: {secret}")
    except RuntimeError:
        logger.exception("With %s.", secret, extra={"list": [secret], "map": {"k": secret}})

    text = path.read_text()
    assert text.count("[redacted]") == 4
    assert "word" not in text


def test_a_secret_that_contains_another_is_replaced_whole() -> None:
    logs.register_secret("abcd")
    logs.register_secret("abcdefgh")
    assert logs.redact("abcdefgh abcd") == "[redacted] [redacted]"


def test_short_values_are_not_taken_for_secrets() -> None:
    logs.register_secret("on")
    assert logs.redact("one more") == "one more"


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="debug, info, warning, error"):
        logs.configure_logging("loud", "text", None, "x")


def test_configuring_twice_writes_each_line_once(path: Path) -> None:
    logs.configure_logging("info", "text", str(path), "x")
    logs.configure_logging("info", "text", str(path), "x")
    logger.info("once")
    assert len(path.read_text().splitlines()) == 1

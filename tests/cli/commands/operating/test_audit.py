"""Reading the files of the audit while workers write and ship them."""

import json
from pathlib import Path
from typing import Any

import click
import pytest

from leaseway.cli.commands.operating.audit import calls_of, earliest, new_records, newest


def line(number: int, time: int = 0) -> bytes:
    return json.dumps({"time": f"2026-11-{time:02}", "seq": number}).encode() + b"\n"


def numbers(records: Any) -> list[int]:
    return [record["seq"] for record in records]


def test_what_is_written_while_records_are_read_comes_once_and_whole(tmp_path: Path) -> None:
    path, seen = tmp_path / "run.1.jsonl", dict[Path, int]()
    path.write_bytes(line(1) + line(2))
    reading = new_records(tmp_path, seen)
    first = next(reading)
    with path.open("ab") as file:
        file.write(line(3)[:-5])
    assert numbers([first, *reading]) == [1, 2]
    with path.open("ab") as file:
        file.write(line(3)[-5:] + line(4))
    assert numbers(new_records(tmp_path, seen)) == [3, 4]
    assert numbers(new_records(tmp_path, seen)) == []


def test_files_that_are_shipped_meanwhile_end_nothing(tmp_path: Path) -> None:
    seen = dict[Path, int]()
    for number in (1, 2):
        (tmp_path / f"run.{number}.jsonl").write_bytes(line(number))
    reading = new_records(tmp_path, seen)
    first = next(reading)
    for path in tmp_path.iterdir():
        path.unlink()
    assert numbers([first, *reading]) == [1]
    assert numbers(new_records(tmp_path, seen)) == []
    (tmp_path / "other.1.jsonl").write_bytes(line(3))
    assert numbers(new_records(tmp_path, seen)) == [3]


def test_the_newest_records_of_all_files_are_kept_and_all_are_read() -> None:
    records = [{"seq": number, "time": f"{number // 2}"} for number in (6, 7, 0, 1, 4, 5)]
    assert numbers(newest(3, records)) == [5, 6, 7]
    rest = iter(records)
    assert (newest(0, rest), list(rest)) == ([], [])


def test_a_call_is_one_row_at_the_time_of_its_begin() -> None:
    records: list[dict[str, Any]] = [
        {"event": "opened"},
        {"event": "begin", "time": "1", "call": 1, "tool": "pay"},
        {"event": "begin", "time": "2", "call": 2, "tool": "pay"},
        {"event": "call", "time": "3", "call": 3, "tool": "read", "outcome": "ok"},
        {"event": "approval", "time": "4", "outcome": "denied"},
        {"event": "call", "time": "5", "call": 1, "outcome": "tool_error"},
    ]
    found = [(call["time"], call.get("tool"), call["outcome"]) for call in calls_of(records)]
    assert sorted(found) == [
        ("1", "pay", "tool_error"), ("2", "pay", "begun"), ("3", "read", "ok"),
        ("4", None, "denied"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("2026-11-22T20:00:00Z", "2026-11-22T20:00:00.000Z"),
        ("2026-11-22T20:00:00+02:00", "2026-11-22T18:00:00.000Z"),
        ("2026-11-22", "2026-11-22T00:00:00.000Z"),
        ("9999999d", "1970-01-01T00:00:00.000Z"),
    ],
)
def test_since_is_compared_in_the_format_of_records(since: str, expected: str) -> None:
    assert earliest(since) == expected


@pytest.mark.parametrize("since", ["2026-99-99", "yesterday", "2h30m", f"{10**400}d"])
def test_what_is_no_time_is_refused(since: str) -> None:
    with pytest.raises(click.UsageError, match="is not a time"):
        earliest(since)

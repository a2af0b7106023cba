"""The audit's hash chain, redaction and files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseway.data_plane.audit import redact
from leaseway.data_plane.audit.chain import HashChain, RunReport, verify_run
from leaseway.data_plane.audit.log import AuditLog, AuditUnavailable, runs_in
from leaseway.data_plane.audit.redact import Redactor, may_hold_secret
from leaseway.wire.bounds import MIB
from leaseway.wire.secrets.redaction import REDACTED
from leaseway.wire.secrets.secret_shapes import BYTE_MARKS

NOW = 1_800_000_000.0


def lines_of(count: int, at_once: int = 1) -> list[bytes]:
    chain = HashChain()
    first = chain.seal([b'"event":"opened","prev":"%s"' % (b"0" * 64)])
    calls = [b'"event":"call","n":%d' % number for number in range(count)]
    rest = [chain.seal(calls[start : start + at_once]) for start in range(0, count, at_once)]
    return b"".join([first, *rest, chain.seal([b'"event":"closed"'])]).splitlines(keepends=True)


def check(lines: list[bytes]) -> RunReport:
    return verify_run([("audit.jsonl", lines)])


def test_an_untouched_chain_verifies() -> None:
    report = check(lines_of(5))
    assert (report.records, report.faults, report.remarks) == (7, [], [])


@given(st.data())
@settings(max_examples=300)
def test_a_flipped_bit_anywhere_is_found(data: st.DataObject) -> None:
    content = bytearray(b"".join(lines_of(5, data.draw(st.integers(1, 3)))))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    report = check(bytes(content).splitlines(keepends=True))
    last_line_end = place == len(content) - 1
    assert report.faults or (last_line_end and report.remarks)


@given(st.integers(0, 5), st.booleans(), st.integers(1, 4))
def test_a_removed_or_repeated_line_is_found(number: int, repeat: bool, at_once: int) -> None:
    lines = lines_of(6, at_once)
    if repeat:
        lines.insert(number, lines[number])
    else:
        del lines[number]
    assert check(lines).faults


@pytest.mark.parametrize("at_once", [1, 4])
def test_swapped_lines_are_found(at_once: int) -> None:
    lines = lines_of(4, at_once)
    lines[2], lines[3] = lines[3], lines[2]
    assert check(lines).faults


def test_a_truncated_end_is_a_remark() -> None:
    assert not check(lines_of(4)[:-2]).faults
    assert "no closing record" in check(lines_of(4)[:-2]).remarks[0]
    for torn in (lines_of(4), lines_of(4, 4)[:-1]):
        torn[-1] = torn[-1][:20]
        report = check(torn)
        assert not report.faults
        assert "middle of a line" in report.remarks[0]


def test_records_without_a_hash_are_found() -> None:
    unsealed = check(lines_of(4, 4)[:-2])
    assert unsealed.faults == ["audit.jsonl:4: The records from line 2 on have no hash."]
    changed = lines_of(4, 4)
    changed[2] = changed[2].replace(b'"n":1', b'"n":7')
    [fault] = check(changed).faults
    assert fault.startswith("audit.jsonl:5: One of the records from line 2 to this one")


def test_arguments_cannot_imitate_a_hash() -> None:
    chain = HashChain()
    like = b'"event":"begin","arguments":{"n":1,"hash":"%s"}' % (b"0" * 64)
    first = chain.seal([b'"event":"opened","prev":"%s"' % (b"0" * 64)])
    lines = first + chain.seal([like, like, b'"event":"closed"'])
    assert check(lines.splitlines(keepends=True)).faults == []


SECRETS = [
    "AKIAIOSFODNN7EXAMPLE",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghijkl_MNOPQRSTUV",
    "glpat-XyZ12abcDEF34ghiJKL5",
    "glrt-t1_XyZ12abcDEF34ghi",
    "xoxb-123456789012-abcdefGHIJKL",
    "xapp-1-A0123456789-abcdef",
    "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "ya29.a0AfH6SMBabcdefghijklmnop",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "pypi-AgEIcHlwaS5vcmcCJDAwMDAwMDAwLTAwMDAtMDAwMC0",
    "dckr_pat_abcdefghijklmnopqrstuvwxyz1",
    "hf_abcdefghijklmnopqrstuvwx",
    "sk_live_abcdefghijklmnop1234",
    "rk_test_abcdefghijklmnop1234",
    "whsec_abcdefghijklmnop1234",
    "sk-proj-abcdefghijklmnopqrst",
    "sk-ant-api03-abcdefghijklmnopqrst",
    "SG.abcdefghijklmnopqrstuv.abcdefghijklmnopqrstuv",
    "dop_v1_" + "a1" * 32,
    "shpat_" + "0af1" * 8,
    "hvs.CAESIabcdefghijklmnopqrstuv",
    "123456789:AAabcdefghijklmnopqrstuvwxyz0123456",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl",
    "lwk_abcdefgh_ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefg",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl",
    "AGE-SECRET-KEY-1QQPQZRFR7ZZ2WCV5ABCDEFGH",
    "Authorization: Bearer abcdefghijklmnopqrstu",
    "Basic dXNlcjpwYXNzd29yZA==",
    "postgres://user:hunter22@db.example/app",
    "redis://:hunter22@cache.example:6379",
    "Server=db;Password=hunter22;Database=app",
    "AccountKey=abcdefghij0123456789==;EndpointSuffix=x",
    "https://x.example/cb?access_token=abcdef123456",
    "https://x.blob.example/c?sv=1&sig=abcdef%2F123",
    "curl -d client_secret=abcdef123456",
    "api_key: abcdef123456",
    "ASIAIOSFODNN7EXAMPLE",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_a_value_with_the_shape_of_a_secret_is_redacted(secret: str) -> None:
    arguments: dict[str, Any] = {
        "plain": secret,
        "deep": {"list": ["ok", f"before {secret} after"]},
        secret: "as a key",
    }
    recorded = Redactor().redact(json.dumps(arguments).encode(), arguments)
    text = msgspec.json.encode(recorded).decode()
    assert secret not in json.dumps(json.loads(text), ensure_ascii=False)
    assert secret[:24] not in text
    escaped = json.dumps(arguments).replace("a", "\\u0061").encode()
    assert secret[:24] not in msgspec.json.encode(Redactor().redact(escaped, arguments)).decode()


@pytest.mark.parametrize(
    "name",
    ["password", "db_password", "API-KEY", "apiKey", "clientSecret", "token", "Authorization"],
)
def test_a_value_with_the_name_of_a_secret_is_redacted(name: str) -> None:
    arguments = {"user": "ann", name: "hunter2", "more": [{name: 12345}]}
    recorded = Redactor().redact(json.dumps(arguments).encode(), arguments)
    assert json.loads(msgspec.json.encode(recorded)) == {
        "user": "ann",
        name: REDACTED,
        "more": [{name: REDACTED}],
    }


@pytest.mark.parametrize(("naming", "valued"), [("name", "value"), ("Key", "Value")])
def test_a_value_that_another_member_names_as_a_secret_is_redacted(
    naming: str, valued: str
) -> None:
    variables = [{naming: "DB_PASSWORD", valued: "hunter2"}, {naming: "PLACE", valued: "Oslo"}]
    arguments: dict[str, Any] = {"env": variables}
    recorded = Redactor().redact(json.dumps(arguments).encode(), arguments)
    variables[0][valued] = REDACTED
    assert recorded == {"env": variables}


def test_what_names_a_value_is_judged_once_however_many_values_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[str] = []
    monkeypatch.setattr(redact, "names_a_secret", judged.append)
    members = {"name": "place", "value": "a", "values": "b", "VALUE": "c", "note": "token"}
    assert Redactor().redact(json.dumps(members).encode(), members) == members
    assert judged.count("place") == 1


def test_secret_properties_of_the_schema_are_redacted() -> None:
    schema = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "format": "password"},
            "card": {"type": "object", "properties": {"number": {"writeOnly": True}}},
        },
    }
    redactor = Redactor(schema)
    for arguments in ({"code": "a1", "x": 1}, {"card": {"number": "4111"}}, {"x": {"code": "a1"}}):
        recorded = redactor.redact(json.dumps(arguments).encode(), arguments)
        text = msgspec.json.encode(recorded).decode()
        assert "a1" not in text
        assert "4111" not in text


def test_ordinary_arguments_are_recorded_unchanged() -> None:
    sent = b'{"path": "notes/a.txt",  "n": 3}'
    assert Redactor().redact(sent, json.loads(sent)) == msgspec.Raw(sent)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), _JSON, max_size=5))
@settings(max_examples=40)
def test_any_arguments_are_recorded_as_bounded_json(arguments: dict[str, Any]) -> None:
    sent = json.dumps(arguments).encode()
    encoded = msgspec.json.encode(Redactor().redact(sent, arguments))
    assert isinstance(json.loads(encoded), dict)
    assert len(encoded) < 64 * 1024


def test_huge_arguments_are_recorded_by_their_keys() -> None:
    arguments = {f"key{number}": "x" * 500 for number in range(60)}
    recorded = Redactor().redact(json.dumps(arguments).encode(), arguments)
    assert isinstance(recorded, dict)
    assert recorded["[keys]"][:2] == ["key0", "key1"]


def reports(folder: Path) -> list[RunReport]:
    return [
        verify_run((path.name, path.read_bytes().splitlines(True)) for path in files)
        for files in runs_in(folder).values()
    ]


async def test_records_are_written_rotated_and_verify(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "w/1", "abc", lambda: NOW, file_size=1_000)
    for number in range(50):
        body = b'"n":%d' % number
        if number % 2:
            log.write([body])
        else:
            log.add(body)
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert len(files) > 2
    assert files[0] == "w_1.abc.000001.jsonl"
    [report] = reports(tmp_path)
    assert (report.faults, report.remarks) == ([], [])
    assert report.records == 50 + len(files) + 1
    (tmp_path / files[1]).unlink()
    assert reports(tmp_path)[0].faults


async def test_an_emptied_file_is_found(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "w1", "abc", lambda: NOW)
    log.close()
    [path] = tmp_path.iterdir()
    path.write_bytes(b"")
    assert reports(tmp_path)[0].faults == [
        "w1.abc.000001.jsonl:0: The file is empty: its opening record was removed."
    ]


async def test_exchanged_files_are_found(tmp_path: Path) -> None:
    for incarnation in ("abc", "def"):
        log = AuditLog(tmp_path, "w1", incarnation, lambda: NOW)
        log.write([b'"event":"call","run":"%b"' % incarnation.encode()])
        log.close()
    first, second = sorted(tmp_path.iterdir())
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    one, other = reports(tmp_path)
    assert "was written as w1.def.000001.jsonl: files were exchanged" in one.faults[0]
    assert "was written as w1.abc.000001.jsonl: files were exchanged" in other.faults[0]


@pytest.mark.parametrize("gone", ["file deleted", "folder deleted", "folder moved"])
async def test_records_continue_in_a_new_file_if_theirs_is_gone(tmp_path: Path, gone: str) -> None:
    folder, problems = tmp_path / "audit", list[str]()
    log = AuditLog(folder, "w1", "abc", lambda: NOW, check_interval=0)
    log.problem.connect(problems.append)
    log.write([b'"event":"call","n":1'])
    match gone:
        case "file deleted":
            (folder / "w1.abc.000001.jsonl").unlink()
        case "folder deleted":
            shutil.rmtree(folder)
        case _:
            folder.rename(tmp_path / "archive")
    log.write([b'"event":"call","n":2'])
    log.close()
    assert [path.name for path in folder.iterdir()] == ["w1.abc.000002.jsonl"]
    [report] = reports(folder)
    assert (report.faults, report.records) == ([], 3)
    assert "was deleted or moved while it was written" in problems[0]
    assert problems[1:] == [""]


async def test_older_files_may_be_archived(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "w1", "abc", lambda: NOW, file_size=500)
    for number in range(20):
        log.write([b'"event":"call","n":%d' % number])
    log.close()
    min(tmp_path.iterdir()).unlink()
    [report] = reports(tmp_path)
    assert not report.faults
    assert "older files" in report.remarks[0]


def test_written_records_are_told_as_json(tmp_path: Path) -> None:
    told: list[bytes] = []
    log = AuditLog(tmp_path, "w1", "abc", lambda: NOW, on_written=told.extend)
    log.write([b'"event":"call","n":1'])
    log.close()
    assert [json.loads(record).get("n") for record in told] == [1, None]
    assert json.loads(told[1])["event"] == "closed"


async def test_a_full_disk_rejects_writes_and_counts_dropped_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[str] = []
    log = AuditLog(tmp_path, "w1", "abc", lambda: NOW)
    log.problem.connect(problems.append)
    log.write([b'"event":"begin","n":1'])
    real = os.write

    def full(descriptor: int, content: bytes) -> int:
        if len(content) > 10:
            return real(descriptor, bytes(content)[:10])  # some of it, and then no more
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("leaseway.data_plane.audit.log.os.write", full)
        with pytest.raises(AuditUnavailable, match="No space left"):
            log.write([b'"event":"begin","n":2'])
        log.add(b'"event":"call","n":3')
        log.lost = 4  # as many as did not fit
    log.write([b'"event":"begin","n":5'])
    log.close()
    assert [bool(problem) for problem in problems] == [True, False]
    [path] = tmp_path.iterdir()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record.get("n") for record in records] == [None, 1, None, 3, 5, None]
    assert records[2]["records"] == 4
    [report] = reports(tmp_path)
    assert not report.faults


async def test_many_added_records_are_written_at_once_and_dropped_if_they_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AuditLog(tmp_path, "w1", "abc", lambda: NOW)
    [path] = tmp_path.iterdir()
    large = b'"event":"call","text":"%b"' % (b"a" * 40_000)
    log.add(large)
    assert path.read_bytes().count(b'"call"') == 0
    log.add(large)
    assert path.read_bytes().count(b'"call"') == 2

    def full(_descriptor: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    fitting = 4 * MIB // len(large)
    with monkeypatch.context() as patch:
        patch.setattr("leaseway.data_plane.audit.log.os.write", full)
        for _ in range(fitting + 3):
            log.add(large)
    assert log.lost == 3
    log.write([b'"event":"begin"'])
    assert path.read_bytes().count(b'"call"') == 2 + fitting
    assert path.read_bytes().count(b'"event":"lost","worker":"w1","run":"abc","records":3') == 1
    log.add(large)
    log.close()
    log.add(large)
    assert path.read_bytes().count(b'"call"') == 3 + fitting
    assert not reports(tmp_path)[0].faults


_KILLED = """
import json, os, pathlib, signal, sys
from leaseway.data_plane.audit.log import AuditLog
log = AuditLog(pathlib.Path(sys.argv[1]), "w1", "abc", lambda: 1.8e9)
for number in range(10**9):
    log.write([b'"event":"begin","n":%d' % number])
    os.write(1, b"%d\\n" % number)
"""


def test_written_records_survive_sigkill(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        done = [int(process.stdout.readline()) for _ in range(200)]
        process.send_signal(signal.SIGKILL)
        done += [int(line) for line in process.stdout.read().split()]
    [path] = tmp_path.iterdir()
    recorded = {json.loads(line).get("n") for line in path.read_text().splitlines()}
    assert set(done) <= recorded
    assert not reports(tmp_path)[0].faults


@given(
    st.lists(
        st.sampled_from([*BYTE_MARKS, b"a", b"-", b"_", b" ", b"gh", b"KEY", b"se", b"tok"]),
        max_size=6,
    ),
    st.integers(0, 3),
)
def test_only_text_with_a_mark_may_hold_a_secret(pieces: list[bytes], cut: int) -> None:
    text = b"".join(pieces)[cut:]
    assert may_hold_secret(text) == any(mark in text.lower() for mark in BYTE_MARKS)

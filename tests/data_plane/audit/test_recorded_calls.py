"""The audit records of a worker's calls, refusals and approvals."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.calls import call_message
from tests.data_plane.conftest import Bench, worker_bench

from leaseway.data_plane.audit.chain import verify_run
from leaseway.data_plane.audit.log import AuditLog, runs_in
from leaseway.data_plane.audit.record import _redacted
from leaseway.data_plane.audit.redact import Redactor
from leaseway.identity.refusals import RpcRefusal
from leaseway.spec.policy import ArgumentRule, ServerPolicy
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Reason

NOW = 1_800_000_000.0
READS = ServerPolicy(risks=(("*", "read_only"),))


class Audited:
    """A worker that records its calls."""

    def __init__(self, bench: Bench, log: AuditLog, folder: Path) -> None:
        self.bench = bench
        self.log = log
        self.folder = folder

    def records(self, *events: str) -> list[dict[str, Any]]:
        """Return the written records of some events, by default of calls."""
        paths = sorted(self.folder.iterdir())
        lines = [line for path in paths for line in path.read_bytes().splitlines()]
        records = [json.loads(line) for line in lines]
        return [record for record in records if record["event"] in (events or ("begin", "call"))]


@pytest.fixture
async def audited(tmp_path: Path) -> AsyncIterator[Audited]:
    log = AuditLog(tmp_path, "w1", "abc", lambda: NOW)
    async with worker_bench(audit=log) as bench:
        yield Audited(bench, log, tmp_path)
    log.close()
    for files in runs_in(tmp_path).values():
        verdict = verify_run((path.name, path.read_bytes().splitlines(True)) for path in files)
        assert not verdict.faults


async def test_a_call_that_may_change_something_is_recorded_before_it_runs(
    audited: Audited,
) -> None:
    await audited.bench.hold("time")
    caller = audited.bench.caller()
    call_id = await caller.begin(
        "time", tenant="acme", agent="billing", session="d1", traceparent=f"00-{'a' * 32}-b-01"
    )
    await audited.bench.wait_for_calls()
    [begun] = audited.records()
    wanted = {
        "event": "begin",
        "worker": "w1",
        "run": "abc",
        "tenant": "acme",
        "agent": "billing",
        "session": "d1",
        "server": "time",
        "tool": "echo",
        "arguments": {"text": "hi"},
        "risk": "mutating",
        "trace": "a" * 32,
    }
    assert {name: begun.get(name) for name in wanted} == wanted
    audited.bench.servers.opened[0].calls[0].answer(b"{}")
    await caller.result(call_id)
    audited.log.close()
    _, ended = audited.records()
    assert (ended["call"], ended["outcome"]) == (begun["call"], "ok")
    assert ended["duration_ms"] >= 0


async def test_a_call_for_a_user_is_recorded_with_him_and_with_the_credential(
    audited: Audited,
) -> None:
    await audited.bench.serve("time")
    caller = audited.bench.caller()
    await caller.call("time", user="anna")
    await caller.call("time")
    users = [record.get("user") for record in audited.records("begin")]
    assert users == ["anna", None]
    assert all(record["credential"] for record in audited.records("begin"))


async def test_of_a_name_that_is_there_twice_a_record_shows_what_any_server_may_read(
    audited: Audited,
) -> None:
    await audited.bench.serve("time")
    caller = audited.bench.caller()
    for secret in ("", ', "password": "s3"'):
        twice = f'{{"text": "a", "in": [{{"text": "b", "text": "c"}}], "text": "d"{secret}}}'
        await caller.call("time", arguments=twice.encode())
    plain, redacted = audited.records("begin")
    assert plain["arguments"] == json.loads(twice.replace(secret, ""))
    lines = b"".join(path.read_bytes() for path in sorted(audited.folder.iterdir()))
    assert b'"text": "a"' in lines, "without a secret the record has the very bytes"
    shown = redacted["arguments"]
    assert shown["[first of each name]"]["text"] == "a"
    assert shown["[first of each name]"]["in"] == [{"text": "b"}]
    assert shown["[last of each name]"]["text"] == "d"
    assert shown["[last of each name]"]["in"] == [{"text": "c"}]
    assert {values["password"] for values in shown.values()} == {"[redacted]"}


async def test_calls_that_come_together_are_recorded_in_one_write_before_any_is_sent(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    await audited.bench.serve("time")
    caller = audited.bench.caller()
    assert (await caller.call("time")).payload
    audited.bench.servers.holds = True
    instance = audited.bench.servers.opened[0]
    sent = len(instance.calls)
    written: list[tuple[int, int]] = []
    write = os.write

    def noted(descriptor: int, content: bytes) -> int:
        begun = content.count(b'"event":"begin"')
        if begun:
            written.append((begun, len(instance.calls) - sent))
        return write(descriptor, content)

    monkeypatch.setattr("leaseway.data_plane.audit.log.os.write", noted)
    numbers = range(1_001, 1_021)
    for number in numbers:
        caller.results[number] = asyncio.get_running_loop().create_future()
    await caller.send(
        calls=[
            call_message(id=number, server_id="time", tool="echo", arguments=b'{"text":"a"}')
            for number in numbers
        ]
    )
    await audited.bench.until(lambda: len(instance.calls) == sent + len(numbers))
    assert written == [(len(numbers), 0)]
    for call in instance.calls[sent:]:
        call.answer(b"{}")
    for number in numbers:
        await caller.result(number)


async def test_repeated_calls_are_recorded_each_with_its_own_names_and_without_secrets(
    audited: Audited,
) -> None:
    """What calls have in common is prepared once; what differs must not be that of another call."""
    properties = {"text": {"type": "string"}, "plate": {"type": "string", "writeOnly": True}}
    tools = {
        name: msgspec.json.encode(
            {"name": name, "inputSchema": {"type": "object", "properties": {key: properties[key]}}}
        )
        for name, key in (("echo", "text"), ("enter", "plate"))
    }
    await audited.bench.push(audited.bench.upsert(audited.bench.spec("time"), tools))
    caller = audited.bench.caller()
    asked = [
        {"tool": "echo", "session": "d1", "text": "a"},
        {"tool": "echo", "session": "d2", "text": "b"},
        {"tool": "echo", "session": "d1", "user": "anna", "text": "c"},
        {"tool": "enter", "session": "d1", "plate": "B-LW 1"},
    ]
    for dirty in ("", "a key", ""):  # one for which a record has to be searched, in between
        texts = [*asked, {"tool": "echo", "session": "d1", "text": dirty}]
        numbers = range(2_000, 2_000 + len(texts))
        for number in numbers:
            caller.results[number] = asyncio.get_running_loop().create_future()
        names = ("tool", "session", "user")
        await caller.send(
            calls=[
                call_message(
                    id=number,
                    server_id="time",
                    arguments=msgspec.json.encode(
                        {key: text for key, text in call.items() if key not in names}
                    ),
                    **{name: call[name] for name in names if name in call},
                )
                for number, call in zip(numbers, texts, strict=True)
            ]
        )
        for number in numbers:
            await caller.result(number)
    begun = audited.records("begin")
    assert len(begun) == 3 * (len(asked) + 1)
    for at, wanted in enumerate(asked):
        for record in begun[at :: len(asked) + 1]:
            shown = {"plate": "[redacted]"} if "plate" in wanted else {"text": wanted["text"]}
            assert (record["tool"], record["session"]) == (wanted["tool"], wanted["session"])
            assert (record.get("user"), record["arguments"]) == (wanted.get("user"), shown)


async def test_refused_rpcs_of_both_planes_are_recorded(audited: Audited) -> None:
    here = RpcRefusal("ExecutionService/ReadLogs", "key abc", "ipv4:192.0.2.7", "PERMISSION_DENIED")
    audited.bench.worker.records.record_refused_rpc(here, 1)
    there = sync_pb2.RefusedRpc(rpc="AdminService/DrainWorker", outcome="UNAUTHENTICATED", times=9)
    audited.bench.plane.send(refused_rpc=there)
    await audited.bench.until(lambda: len(audited.records("refused")) == 2)
    first, second = audited.records("refused")
    assert (first["plane"], first["rpc"], first["by"]) == ("worker", here.rpc, here.by)
    assert (first["from"], first["outcome"], first["times"]) == (here.peer, here.outcome, 1)
    assert (second["plane"], second["rpc"]) == ("control-plane", there.rpc)
    assert (second["outcome"], second["times"]) == (there.outcome, 9)
    assert not {"by", "from"} & set(second)


async def test_each_call_has_one_outcome_also_when_it_is_refused(audited: Audited) -> None:
    rule = ArgumentRule('args.text == "no"')
    await audited.bench.serve("time", policy=ServerPolicy(risks=READS.risks, rules=(rule,)))
    caller = audited.bench.caller()
    await caller.call("time")
    await caller.refused("time", arguments=b'{"text": "no"}')
    await caller.refused("time", arguments=b'{"text": 7}')
    await caller.refused("time", "nothing")
    await caller.refused("nobody", arguments=b"nonsense")
    audited.log.close()
    records = audited.records()
    assert [record["outcome"] for record in records] == [
        "ok",
        "PERMISSION_DENIED",
        "INVALID_ARGUMENTS",
        "TOOL_NOT_FOUND",
        "TOOL_NOT_FOUND",
    ]
    assert records[1]["rule"] == 1
    assert records[4]["arguments"] == {"[left out]": "8 bytes that are no JSON object"}
    assert [record["event"] for record in records] == ["call"] * 5


async def test_no_secret_is_recorded_in_any_field(audited: Audited) -> None:
    secret = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    await audited.bench.serve("time")
    caller = audited.bench.caller()
    await caller.call("time", arguments=msgspec.json.encode({"text": f"use {secret}"}))
    await caller.call("time", session=secret, agent=secret)
    await caller.refused("time", secret)
    audited.log.close()
    for path in audited.folder.iterdir():
        assert secret not in path.read_text()
    assert audited.records()[0]["arguments"] == {"text": "[redacted]"}


async def test_a_full_disk_refuses_only_calls_that_change_something(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    await audited.bench.serve("time")
    await audited.bench.serve("readme", policy=READS)
    caller = audited.bench.caller()
    assert (await caller.call("time")).payload

    def full(_descriptor: int, _content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("leaseway.data_plane.audit.log.os.write", full)
        audited.bench.servers.holds = True
        fault = await caller.refused("time")
        assert (fault.reason, fault.started) == (Reason.OVERLOADED, "no")
        assert "No space left" in fault.message
        assert not audited.bench.servers.opened[0].calls
        audited.bench.servers.holds = False
        assert (await caller.call("readme")).payload
        report = await audited.bench.plane.expect_report(lambda each: each.problems)
        assert report.problems[0].reason == "AUDIT_NOT_WRITTEN"
        assert "Free disk space" in report.problems[0].message
    assert (await caller.call("time")).payload
    audited.log.close()
    outcomes = [record["outcome"] for record in audited.records() if record["event"] == "call"]
    assert sorted(outcomes) == ["OVERLOADED", "ok", "ok", "ok"]


SECRET = '"k3y"'
PLAIN = st.sampled_from(["1", "null", '"a"', "[]"])


def _values(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return JSON objects whose member `plate`, there up to three times, is a secret."""
    member = st.one_of(
        st.just(f'"plate":{SECRET}'),
        st.just(f'"pl\\u0061te":{SECRET}'),
        st.tuples(st.sampled_from(["a", "b"]), inner).map(lambda pair: f'"{pair[0]}":{pair[1]}'),
    )
    return st.lists(member, max_size=3).map(lambda members: f"{{{','.join(members)}}}")


@example(f'{{"a":{{"plate":{SECRET}}},"a":1}}')
@given(_values(st.recursive(PLAIN, _values, max_leaves=6)))
def test_no_value_of_a_secret_name_is_recorded_also_if_decoders_drop_it(arguments: str) -> None:
    schema = {"properties": {"plate": {"type": "string", "writeOnly": True}}}
    redactor = Redactor(schema)
    text = arguments.encode()
    assert not (redactor.is_clean(text) and SECRET in arguments)
    assert SECRET.encode() not in _redacted(redactor, text)

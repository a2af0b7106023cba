"""Calls of a stream as values: heads that are known again, bound to their caller."""

from __future__ import annotations

from typing import Any

import pytest
from tests.calls import call_message, head_of

from leaseway.data_plane.services.streams import CallHeads
from leaseway.identity.principal import LOOPBACK, Principal, Role
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.timing.durations import duration

CALLER = frozenset({Role.CALLER})
FIELDS: dict[str, Any] = {
    "id": 7,
    "timeout_ms": 5,
    "traceparent": "00-1",
    "tracestate": "a=b",
    "meta": b'{"a":1}',
    "input": b'{"b":1}',
    "subject_token": "token",
    "server_id": "time",
    "tool": "now",
    "registry_version": 3,
    "tenant": "acme",
    "agent": "billing",
    "user": "ann",
    "session": "s1",
    "lease_id": "l1",
    "method": "prompts/get",
    "wants_progress": True,
    "log_level": "info",
    "answers": ("roots/list",),
    "inline_media": True,
    "passes_input": True,
    "mcp_client": b"{}",
    "acquirer": "c1",
    "lease_ttl": 1.5,
    "report_end": True,
    "known_ends": ("l0",),
}


def read(heads: CallHeads, **fields: Any) -> Any:
    return heads.read(call_message(id=1, **fields), 1)


@pytest.mark.parametrize("times", [1, 2], ids=["a new head", "a known head"])
def test_every_field_of_a_call_reaches_the_worker(times: int) -> None:
    message = call_message(**{**FIELDS, "lease_ttl": duration(1.5)})
    heads = CallHeads(LOOPBACK)
    for _ in range(times):
        call = heads.read(message, message.id)
    assert {name: getattr(call, name) for name in FIELDS} == FIELDS
    declared = (execution_pb2.Call, execution_pb2.CallHead, execution_pb2.CallOptions)
    names = {name for message in declared for name in message.DESCRIPTOR.fields_by_name}
    assert names - set(FIELDS) == {"head", "arguments", "options"}
    assert set(call.__struct_fields__) - {"head"} == set(FIELDS)


def test_what_only_one_call_has_does_not_stay_with_its_head() -> None:
    heads = CallHeads(LOOPBACK)
    assert read(heads, session="s1", subject_token="t", timeout_ms=5).subject_token == "t"
    later = read(heads, session="s1")
    assert (later.subject_token, later.timeout_ms, later.session) == ("", 0, "s1")


def test_a_head_gets_the_names_of_its_callers_credential() -> None:
    heads = CallHeads(Principal("key", CALLER, tenant="acme", agent="billing", token="own"))
    for _ in range(2):
        call = read(heads, tool="now", agent="other")
        assert (call.tenant, call.agent, call.subject_token) == ("acme", "billing", "own")


def test_a_head_for_another_tenant_or_user_is_denied_every_time() -> None:
    heads = CallHeads(Principal("key", CALLER, tenant="acme"))
    for names in ({"tenant": "other"}, {"user": "ann"}) * 2:
        with pytest.raises(Fault) as caught:
            read(heads, **names)
        assert caught.value.reason is Reason.PERMISSION_DENIED
    assert not heads.held_bytes


@pytest.mark.parametrize(
    "head",
    [b"\xff", head_of(tool="x" * bounds.MAX_CALL_HEAD), head_of(answers=["a"] * 9_000)],
    ids=["no message", "too long", "too many values"],
)
def test_a_head_that_is_none_is_refused(head: bytes) -> None:
    with pytest.raises(Fault) as caught:
        CallHeads(LOOPBACK).read(execution_pb2.Call(id=1, head=head), 1)
    assert caught.value.reason is Reason.INVALID_REQUEST


def test_the_longest_head_is_read_and_not_kept() -> None:
    heads = CallHeads(LOOPBACK)
    tool = "x" * (bounds.MAX_CALL_HEAD - len(head_of(tool="x" * 60_000)) + 60_000)
    assert len(head_of(tool=tool)) == bounds.MAX_CALL_HEAD
    assert read(heads, tool=tool).tool == tool
    assert not heads.held_bytes


def test_only_a_bounded_number_of_heads_is_kept() -> None:
    heads = CallHeads(LOOPBACK)
    assert read(heads, session="s" * 400).session == "s" * 400
    for number in range(bounds.MAX_KNOWN_HEADS - 1):
        assert read(heads, session=f"s{number:03}").session == f"s{number:03}"
    full = heads.held_bytes
    assert read(heads, session="last").session == "last"
    shorter = len(head_of(session="s" * 400)) - len(head_of(session="last"))
    assert full - heads.held_bytes == 2 * shorter, "a long head has made room for a short one"
    assert read(heads, session="s" * 400).session == "s" * 400

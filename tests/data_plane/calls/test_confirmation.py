"""Calls of tools that need an approval."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import msgspec
import pytest

from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.identity.principal import Principal, Role
from leaseway.sdk.retry_policy import FailedTry, decide
from leaseway.spec.auth import Auth
from leaseway.spec.policy import ArgumentRule, ServerPolicy
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Reason
from leaseway.wire.status import fault_from_status

Bench = Any
NEEDS = ServerPolicy(risks=(("*", "financial"),))


async def answer(bench: Bench, state: str, **fields: Any) -> sync_pb2.ApprovalQuestion:
    """Answer the next question of the worker as a control plane does."""
    question = await bench.plane.expect("approval_question")
    fields = {"approval_id": "a1", **fields}
    bench.plane.send(approval_answer=sync_pb2.ApprovalAnswer(id=question.id, state=state, **fields))
    asked: sync_pb2.ApprovalQuestion = question
    return asked


async def test_nothing_reaches_the_server_before_approval(bench: Bench) -> None:
    await bench.hold("bank", policy=NEEDS)
    refused = asyncio.create_task(
        bench.caller().refused("bank", tenant="acme", agent="billing", session="d1")
    )
    question = await answer(bench, "waiting")
    assert (question.tenant, question.agent, question.session) == ("acme", "billing", "d1")
    assert (question.server_id, question.tool, question.use) == ("bank", "echo", False)
    assert not question.of_session
    assert msgspec.json.decode(question.arguments) == {"text": "hi"}
    fault = await refused
    assert (fault.reason, fault.started) == (Reason.CONFIRMATION_REQUIRED, "no")
    assert fault.metadata["confirmation_id"] == "a1"
    assert "approval (a1)" in fault.message
    assert "leaseway approvals approve a1" in fault.advice
    assert not any(server.calls for server in bench.servers.opened)


async def test_an_approved_call_runs_with_exactly_the_shown_arguments(bench: Bench) -> None:
    await bench.serve("bank", policy=NEEDS)
    twice = b'{"text": "small", "text": "large"}'
    called = asyncio.create_task(bench.caller().call("bank", arguments=twice))
    first = await answer(bench, "approved")
    assert msgspec.json.decode(first.arguments) == {"text": "large"}
    second = await answer(bench, "approved")
    assert (first.use, second.use, first.digest) == (False, True, second.digest)
    assert b"small" not in (await called).payload


async def test_an_approval_cannot_be_used_twice(bench: Bench) -> None:
    await bench.hold("bank", policy=NEEDS)
    refused = asyncio.create_task(bench.caller().refused("bank"))
    await answer(bench, "approved")
    await answer(bench, "waiting", approval_id="a2")
    fault = await refused
    assert fault.reason is Reason.CONFIRMATION_REQUIRED
    assert fault.metadata["confirmation_id"] == "a2"
    assert not any(server.calls for server in bench.servers.opened)


async def test_an_approval_is_bound_to_meta_and_shows_it(bench: Bench) -> None:
    await bench.serve("bank", policy=NEEDS)
    digests = set()
    for meta in (b"", b'{"payee": "eve"}', b'{"payee": "ann"}'):
        refused = asyncio.create_task(bench.caller().refused("bank", meta=meta))
        question = await answer(bench, "waiting")
        assert question.extra == (
            '{"_meta":' + meta.decode().replace(" ", "") + "}" if meta else ""
        )
        digests.add(question.digest)
        await refused
    assert len(digests) == 3


async def test_an_approval_holds_for_a_call_that_its_host_names_differently(bench: Bench) -> None:
    await bench.hold("bank", policy=NEEDS)
    caller, kept = bench.caller(), {"payee": "ann"}
    named: list[dict[str, Any]] = [
        {"claudecode/toolUseId": "toolu_1"},
        {"vscode.requestId": "r2", "baggage": "turn=2", "x-codex-turn-metadata": {"turn": 2}},
    ]
    first, second = [msgspec.json.encode({**kept, **names}) for names in named]
    refused = asyncio.create_task(caller.refused("bank", meta=first))
    asked = await answer(bench, "waiting")
    await refused
    call_id = await caller.begin("bank", meta=second)
    for _ in ("asked", "used"):
        again = await answer(bench, "approved")
        assert (again.digest, again.extra) == (asked.digest, '{"_meta":{"payee":"ann"}}')
    (call,) = await bench.wait_for_calls()
    assert call.request.meta == kept
    call.answer(b"{}")
    await caller.result(call_id)


async def test_an_approval_is_bound_to_the_callers_answers(bench: Bench) -> None:
    await bench.serve("bank", policy=NEEDS)
    replies = b'{"inputResponses":{"amount":{"action":"accept"}},"requestState":"s"}'
    refused = asyncio.create_task(bench.caller().refused("bank", passes_input=True, input=replies))
    question = await answer(bench, "waiting")
    assert msgspec.json.decode(question.extra) == msgspec.json.decode(replies)
    await refused


@pytest.mark.parametrize(
    ("auth", "callers"),
    [
        (Auth("authorization_code", "user"), [{"user": "anna"}, {"user": "bob"}]),
        (Auth("token_exchange", "caller"), [{"subject_token": "a"}, {"subject_token": "b"}]),
        (
            Auth("token_exchange", "caller"),
            [{"user": "anna", "subject_token": "a"}, {"user": "bob", "subject_token": "a"}],
        ),
    ],
    ids=["users", "tokens", "users with tokens"],
)
async def test_an_approval_for_one_user_is_none_for_another(
    bench: Bench, auth: Auth, callers: list[dict[str, str]]
) -> None:
    await bench.serve("bank", policy=NEEDS, auth=auth)
    digests = []
    for caller in [*callers, *callers]:
        refused = asyncio.create_task(bench.caller().refused("bank", **caller))
        question = await answer(bench, "waiting")
        digests.append(question.digest)
        if "user" in caller:
            assert question.asked_by.endswith(f"for the user {caller['user']}")
        await refused
    assert digests[:2] == digests[2:]
    assert digests[0] != digests[1]


async def test_a_call_that_cannot_be_shown_whole_is_refused_without_a_question(
    bench: Bench,
) -> None:
    await bench.serve("bank", policy=NEEDS)
    fault = await bench.caller().refused(
        "bank", arguments=b'{"text": "ghp_16C7e42F292c6912E7710c838347Ae178B4a"}'
    )
    assert fault.reason is Reason.PERMISSION_DENIED
    assert "'text' look like secrets" in fault.message
    assert "ghp_" not in fault.message


async def test_a_full_list_of_approvals_is_no_fault_that_callers_wait_out(bench: Bench) -> None:
    await bench.serve("bank", policy=NEEDS)
    refused = asyncio.create_task(bench.caller().refused("bank"))
    await answer(bench, "full", approval_id="")
    fault = await refused
    assert fault.reason is Reason.RATE_LIMITED
    assert decide(fault, FailedTry(tries=1, remaining=60.0)) is None


async def test_a_question_without_an_answer_is_asked_again_when_the_worker_has_rejoined(
    bench: Bench,
) -> None:
    await bench.serve("bank", policy=NEEDS)
    called = asyncio.create_task(bench.caller().call("bank"))
    first = await answer(bench, "approved")
    lost = await bench.plane.expect("approval_question")
    bench.plane.end_stream()
    again = await answer(bench, "approved")
    assert (again.use, again.use_id, again.digest) == (True, lost.use_id, lost.digest)
    assert first.use_id != lost.use_id
    assert (await called).payload


async def test_a_store_that_fails_refuses_the_call_by_a_reason_of_its_own(bench: Bench) -> None:
    await bench.serve("bank", policy=NEEDS)
    refused = asyncio.create_task(bench.caller().refused("bank"))
    await answer(bench, "unavailable", approval_id="")
    fault = await refused
    assert (fault.reason, fault.started) == (Reason.STORE_UNAVAILABLE, "no")
    assert fault.retry_delay


async def test_invalid_arguments_request_no_approval(bench: Bench) -> None:
    await bench.serve("bank", policy=NEEDS)
    fault = await bench.caller().refused("bank", arguments=b'{"text": 7}')
    assert fault.reason is Reason.INVALID_ARGUMENTS


async def test_no_call_that_needs_approval_runs_without_the_control_plane(bench: Bench) -> None:
    await bench.serve("bank", policy=NEEDS)
    await bench.serve("free")
    bench.plane.end_stream()
    caller = bench.caller()
    assert (await caller.call("free")).payload
    bench.servers.holds = True
    fault = await caller.refused("bank")
    assert fault.reason is Reason.CONTROL_PLANE_UNAVAILABLE
    assert not any(server.calls for server in bench.servers.opened)


def begin_for(bench: Bench, name: str) -> None:
    """Start a call of `bank:echo` for a caller whom its credential names."""
    principal = Principal(name, frozenset({Role.CALLER}))
    call = IncomingCall(id=1, server_id="bank", tool="echo", session=name)
    bench.worker.executor.start_call(call, b'{"text": "hi"}', MagicMock(), principal)


async def test_calls_whose_rules_are_checked_together_keep_their_callers(
    bench: Bench,
) -> None:
    rule = ArgumentRule('args.text == "no"')
    await bench.serve("bank", policy=replace(NEEDS, rules=(rule,)))
    for name in ("key ann", "key bob"):
        begin_for(bench, name)
    asked = [await answer(bench, "denied", decided_by="key eve") for _ in range(2)]
    assert {question.session: question.asked_by for question in asked} == {
        "key ann": "key ann",
        "key bob": "key bob",
    }
    await bench.until(lambda: bench.worker.executor.in_flight == 0)


async def test_a_call_that_needs_an_approval_only_since_it_waits_keeps_its_caller(
    bench: Bench,
) -> None:
    await bench.hold("bank", max_calls=1)
    for name in ("key ann", "key bob"):
        begin_for(bench, name)
    [running] = await bench.wait_for_calls()
    await bench.until(lambda: bench.worker.executor.waiting == 1)
    await bench.serve("bank", policy=NEEDS, max_calls=1)
    running.answer(b"{}")
    assert (await answer(bench, "denied", decided_by="key eve")).asked_by == "key bob"
    await bench.until(lambda: bench.worker.executor.in_flight == 0)


async def test_an_approval_is_spent_only_when_the_call_has_its_turn(bench: Bench) -> None:
    await bench.hold("bank", policy=NEEDS, max_calls=1)
    caller = bench.caller()
    first = await caller.begin("bank")
    for _ in range(2):
        await answer(bench, "approved")
    [running] = await bench.wait_for_calls()
    second = await caller.begin("bank")
    assert not (await answer(bench, "approved")).use
    await bench.until(lambda: bench.worker.executor.waiting == 1)
    running.answer(b"{}")
    assert (await caller.result(first)).payload == b"{}"
    assert (await answer(bench, "denied", decided_by="key eve")).use
    fault = fault_from_status((await caller.result(second)).status)
    assert (fault.reason, fault.started) == (Reason.PERMISSION_DENIED, "no")
    assert bench.worker.executor.in_flight == 0

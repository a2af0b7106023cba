"""Questions of servers to callers over an exchange, and their answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from google.rpc.status_pb2 import Status
from tests.data_plane.conftest import BOTH_WAYS
from tests.data_plane.doubles.servers import AskRefused, MemoryAsk, MemoryCall

from leaseway.data_plane.core.calls.call import Ask
from leaseway.data_plane.core.leases.table import WorkerLease
from leaseway.spec.model import InstancePolicy
from leaseway.spec.policy import Permissions, ServerPolicy
from leaseway.v1 import execution_pb2
from leaseway.wire.bounds import MAX_ASK, MAX_ASKS
from leaseway.wire.errors import Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE
from leaseway.wire.status import fault_from_status

Bench = Any
WAIT = 60.0


async def begin(bench: Bench, caller: Any, *answers: str, **fields: Any) -> tuple[int, MemoryCall]:
    """Start a call on the only server; return its id and the server's side of it."""
    before = _calls(bench)
    call_id = await caller.begin("db", answers=answers or [ELICIT, SAMPLE, ROOTS], **fields)
    await bench.until(lambda: len(_calls(bench)) > len(before))
    (call,) = [each_call for each_call in _calls(bench) if each_call not in before]
    return call_id, call


def _calls(bench: Bench) -> list[MemoryCall]:
    return [call for instance in bench.servers.opened for call in instance.calls]


async def asked(caller: Any, number: int = 1) -> list[execution_pb2.Ask]:
    """Return the received questions once there are enough."""
    await caller.until(lambda: len(_asks(caller)) >= number)
    return _asks(caller)


def _asks(caller: Any) -> list[execution_pb2.Ask]:
    return [ask for message in caller.frames for ask in message.asks]


async def answer(caller: Any, ask: execution_pb2.Ask, result: bytes, **fields: Any) -> None:
    """Answer a question."""
    fields = {"call_id": ask.call_id, "ask_id": ask.ask_id, "result": result, **fields}
    await caller.send(answers=[execution_pb2.Answer(**fields)])


def leases(bench: Bench) -> list[WorkerLease]:
    return list(bench.worker.leases.leases)


async def reply(ask: MemoryAsk) -> Any:
    """Return the answer that the server got."""
    async with asyncio.timeout(WAIT):
        return await ask.reply


async def refusal(ask: MemoryAsk) -> str:
    """Return why the server got no answer."""
    with pytest.raises(AskRefused) as caught:
        await reply(ask)
    return str(caught.value)


@pytest.fixture
async def held(bench: Bench) -> Bench:
    """A worker with one leased server, whose calls wait."""
    await bench.hold("db", shared=False)
    return bench


async def test_a_server_that_asks_at_its_start_asks_the_call_that_waits_for_it(
    bench: Bench,
) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("db", shared=False)
    silent, caller = bench.caller(), bench.caller()
    for other in (silent, caller):
        answers = [ROOTS] if other is caller else []
        await other.begin("db", session="s1", answers=answers)
    waiting = bench.worker.pool.context.waiting
    await bench.until(lambda: any(waiting.find(lease.id, ROOTS) for lease in leases(bench)))
    await bench.until(lambda: bench.servers.opened)
    (instance,) = bench.servers.opened
    assert "on_elicitation=" in await refusal(instance.ask(ELICIT))
    question = instance.ask(ROOTS)
    (ask,) = await asked(caller)
    await answer(caller, ask, b'{"roots":[]}')
    assert await reply(question) == {"roots": []}
    left_open = instance.ask(ROOTS)
    await asked(caller, 2)
    bench.servers.gate.set()
    await caller.result(ask.call_id)
    assert "has ended" in await refusal(left_open)
    assert "roots=" in await refusal(instance.ask(ROOTS))


async def test_nobody_is_asked_at_the_start_of_a_spare_or_of_a_lease_without_a_call(
    bench: Bench,
) -> None:
    bench.servers.gate = asyncio.Event()
    await bench.serve("db", shared=False, instances=InstancePolicy(warm=1))
    await bench.until(lambda: bench.servers.opened)
    (spare,) = bench.servers.opened
    assert "roots=" in await refusal(spare.ask(ROOTS))
    acquiring = asyncio.ensure_future(bench.acquire())
    await bench.until(lambda: leases(bench))
    assert "roots=" in await refusal(spare.ask(ROOTS))
    bench.servers.gate.set()
    await acquiring


@BOTH_WAYS
async def test_a_question_and_its_answer_go_through_as_they_are(held: Bench) -> None:
    caller = held.caller()
    call_id, call = await begin(held, caller, session="s1")
    question = call.ask(ELICIT, {"message": "Name?", "x-unknown": {"a": 1.0}})
    (ask,) = await asked(caller)
    assert (ask.call_id, ask.method) == (call_id, ELICIT)
    assert ask.params == b'{"message":"Name?","x-unknown":{"a":1.0}}'
    await answer(caller, ask, b'{\n"action": "accept",\n"content": {"name": "Ada"}}')
    assert await reply(question) == {"action": "accept", "content": {"name": "Ada"}}
    call.answer(b'{"content":[]}')
    assert (await caller.result(call_id)).payload == b'{"content":[]}'


async def test_an_error_as_an_answer_reaches_the_server_and_the_call_continues(held: Bench) -> None:
    caller = held.caller()
    call_id, call = await begin(held, caller, session="s1")
    question = call.ask(SAMPLE)
    (ask,) = await asked(caller)
    await answer(caller, ask, b"", error=Status(code=2, message="the handler raised KeyError"))
    assert await refusal(question) == "the handler raised KeyError"
    call.answer(b"{}")
    assert not (await caller.result(call_id)).HasField("status")


@pytest.mark.parametrize("result", [b"", b"[1]", b"{", b'{"a":"\xff"}', b"{" * 5000])
async def test_an_answer_that_is_no_object_is_not_passed_on(held: Bench, result: bytes) -> None:
    caller = held.caller()
    _, call = await begin(held, caller, session="s1")
    question = call.ask(ROOTS)
    (ask,) = await asked(caller)
    await answer(caller, ask, result)
    assert "no JSON object" in await refusal(question)


async def test_answers_have_a_bound(held: Bench) -> None:
    caller = held.caller()
    _, call = await begin(held, caller, session="s1")
    for size, fits in ((MAX_ASK, True), (MAX_ASK + 1, False)):
        question = call.ask(ROOTS)
        asks = await asked(caller, 1 if fits else 2)
        await answer(caller, asks[-1], b'{"a":"%b"}' % (b"x" * (size - 8)))
        if fits:
            assert len((await reply(question))["a"]) == size - 8
        else:
            assert f"the limit is {MAX_ASK}" in await refusal(question)


async def test_params_have_a_bound(held: Bench) -> None:
    caller = held.caller()
    _, call = await begin(held, caller, session="s1")
    call.ask(ELICIT, {"message": "x" * (MAX_ASK - 14)})
    (ask,) = await asked(caller)
    assert len(ask.params) == MAX_ASK
    too_long = call.ask(ELICIT, {"message": "x" * (MAX_ASK - 13)})
    assert f"{MAX_ASK + 1} bytes" in await refusal(too_long)


async def test_open_questions_of_a_call_have_a_bound(held: Bench) -> None:
    caller = held.caller()
    _, call = await begin(held, caller, session="s1")
    questions = [call.ask(ROOTS) for _ in range(MAX_ASKS)]
    one_more = call.ask(ROOTS)
    assert "open already" in await refusal(one_more)
    asks = await asked(caller, MAX_ASKS)
    await answer(caller, asks[5], b"{}")
    assert await reply(questions[5]) == {}
    call.ask(ROOTS)
    assert len(await asked(caller, MAX_ASKS + 1)) == MAX_ASKS + 1


async def test_two_calls_of_one_lease_are_answered_crosswise(held: Bench) -> None:
    caller = held.caller()
    first_id, first = await begin(held, caller, session="s1")
    _, second = await begin(held, caller, session="s1")
    assert first.instance is second.instance
    questions = [first.ask(ELICIT), second.ask(ELICIT), first.ask(ROOTS)]
    asks = await asked(caller, 3)
    assert len({ask.ask_id for ask in asks}) == 3
    for place in (1, 2, 0):
        await answer(caller, asks[place], b'{"place":%d}' % place)
    assert [(await reply(question))["place"] for question in questions] == [0, 1, 2]
    await answer(caller, asks[0], b"{}")  # a second answer is dropped
    first.answer(b"{}")
    assert (await caller.result(first_id)).payload == b"{}"


async def test_an_answer_that_names_another_call_is_dropped(held: Bench) -> None:
    caller = held.caller()
    _, first = await begin(held, caller, session="s1")
    second_id, second = await begin(held, caller, session="s1")
    question = first.ask(ROOTS)
    (ask,) = await asked(caller)
    await answer(caller, ask, b'{"of":"second"}', call_id=second_id)
    await answer(caller, ask, b'{"of":"none"}', call_id=999)
    await answer(caller, ask, b'{"of":"first"}')
    assert await reply(question) == {"of": "first"}
    second.answer(b"{}")


async def test_a_question_that_the_caller_cannot_answer_is_refused_with_advice(
    held: Bench,
) -> None:
    caller = held.caller()
    _, call = await begin(held, caller, ROOTS, "x/of-a-later-version", session="s1")
    assert "pass on_sampling=" in await refusal(call.ask(SAMPLE))
    call.ask(ROOTS)
    assert [ask.method for ask in await asked(caller)] == [ROOTS]


async def test_a_call_that_is_cancelled_while_it_asks_refuses_the_question(held: Bench) -> None:
    caller = held.caller()
    call_id, call = await begin(held, caller, session="s1")
    question = call.ask(ELICIT)
    (ask,) = await asked(caller)
    await caller.send(cancels=[execution_pb2.Cancel(call_id=call_id, reason="enough")])
    assert "has ended" in await refusal(question)
    assert call.cancelled == "enough"
    await answer(caller, ask, b"{}")
    assert fault_from_status((await caller.result(call_id)).status).reason is Reason.CANCELLED


async def test_a_call_that_ends_while_it_asks_refuses_the_question(held: Bench) -> None:
    caller = held.caller()
    call_id, call = await begin(held, caller, session="s1")
    question = call.ask(ELICIT)
    (ask,) = await asked(caller)
    call.answer(b"{}")
    assert "has ended" in await refusal(question)
    await caller.result(call_id)
    await answer(caller, ask, b"{}")
    assert not (await caller.call("db", "ecko", session="s1")).payload  # the stream goes on


async def test_a_question_does_not_outlive_the_deadline(held: Bench) -> None:
    caller = held.caller()
    call_id, call = await begin(held, caller, session="s1", timeout_ms=2_000)
    question = call.ask(ELICIT)
    await asked(caller)
    assert "has ended" in await refusal(question)
    fault = fault_from_status((await caller.result(call_id)).status)
    assert (fault.reason, fault.started) == (Reason.DEADLINE_EXCEEDED, "yes")


async def test_a_withdrawn_question_frees_its_place_and_ignores_its_answer(
    held: Bench,
) -> None:
    caller = held.caller()
    _, call = await begin(held, caller, session="s1")
    questions = [call.ask(ROOTS) for _ in range(MAX_ASKS)]
    questions[0].withdraw()
    call.ask(SAMPLE)
    asks = await asked(caller, MAX_ASKS + 1)
    taken_back = [w for message in caller.frames for w in message.withdrawals]
    assert [w.ask_id for w in taken_back] == [asks[0].ask_id]
    await answer(caller, asks[0], b"{}")
    await answer(caller, asks[1], b"{}")
    await reply(questions[1])
    assert not questions[0].reply.done()


async def test_a_stream_that_ends_refuses_its_questions(held: Bench) -> None:
    caller = held.caller()
    _, call = await begin(held, caller, session="s1")
    question = call.ask(ELICIT)
    await asked(caller)
    caller.close()
    assert "has ended" in await refusal(question)
    assert call.cancelled


async def test_a_crash_of_the_server_forgets_its_questions(held: Bench) -> None:
    caller = held.caller()
    call_id, call = await begin(held, caller, session="s1")
    call.ask(ELICIT)
    (ask,) = await asked(caller)
    call.instance.crash()
    await caller.result(call_id)
    await answer(caller, ask, b"{}")
    assert held.worker.executor.in_flight == 0


async def test_a_lease_does_not_expire_while_its_caller_is_asked(held: Bench) -> None:
    caller = held.caller()
    call_id, call = await begin(held, caller, session="s1", lease_ttl={"seconds": 1})
    question = call.ask(ELICIT)
    (ask,) = await asked(caller)
    (lease,) = held.worker.leases.leases
    loop = asyncio.get_running_loop()
    await held.until(lambda: loop.time() > lease.expires_at + 0.3)
    await answer(caller, ask, b'{"action":"accept"}')
    assert await reply(question) == {"action": "accept"}
    call.answer(b"{}")
    result = await caller.result(call_id)
    assert result.lease.id == lease.id
    assert not result.HasField("status")


DEEP: Any = json.loads("[" * 200 + "]" * 200)
ONLY_DATA = ServerPolicy(permissions=Permissions(allowed_paths=("/data",)))


async def test_an_answer_that_permissions_deny_does_not_reach_the_server(bench: Bench) -> None:
    await bench.hold("files", policy=ONLY_DATA)
    caller = bench.caller()
    call_id = await caller.begin("files", answers=[ELICIT])
    [call] = await bench.wait_for_calls()
    question = call.ask(ELICIT, {"message": "Which file?"})
    (ask,) = await asked(caller)
    await answer(caller, ask, b'{"action":"accept","content":{"path":"/etc/passwd"}}')
    assert "passwd" not in await refusal(question)
    fault = fault_from_status((await caller.result(call_id)).status)
    assert (fault.reason, fault.started) == (Reason.PERMISSION_DENIED, "yes")
    assert "passwd" not in fault.message
    assert call.cancelled


async def test_of_a_name_that_is_there_twice_in_an_answer_the_server_reads_what_was_judged(
    bench: Bench,
) -> None:
    await bench.hold("files", policy=ONLY_DATA)
    caller = bench.caller()
    call_id = await caller.begin("files", answers=[ELICIT])
    [call] = await bench.wait_for_calls()
    received: list[bytes] = []
    assert call.request.callbacks.on_ask is not None
    call.request.callbacks.on_ask(
        Ask(ELICIT, b"{}", received.append, lambda _code, _text, _data: None)
    )
    (ask,) = await asked(caller)
    await answer(caller, ask, b'{"action":"accept","path":"/etc/passwd","path":"/data/a"}')
    await bench.until(lambda: received)
    assert received == [b'{"action":"accept","path":"/data/a"}']
    call.answer(b"{}")
    assert (await caller.result(call_id)).payload == b"{}"


async def test_the_error_of_a_callers_client_reaches_the_server_as_it_is(held: Bench) -> None:
    caller = held.caller()
    _, call = await begin(held, caller, ELICIT, session="s1")
    cases: list[tuple[dict[str, Any], tuple[int, str, Any]]] = [
        ({"code": -1, "message": "No.", "data": {"a": [None]}}, (-1, "No.", {"a": [None]})),
        ({"code": 7, "message": ""}, (7, "", None)),
        ({"code": "7"}, (-32603, "older", None)),
        ({"code": -1.5, "message": "No."}, (-32603, "older", None)),
        ({"code": 1, "message": "deep", "data": DEEP}, (-32603, "older", None)),
    ]
    for number, (error, expected) in enumerate(cases, 1):
        question = call.ask(ELICIT, {"message": "Which file?"})
        ask = (await asked(caller, number))[-1]
        encoded = json.dumps(error, indent=1).encode()
        await answer(caller, ask, b"", rpc_error=encoded, error=Status(code=2, message="older"))
        with pytest.raises(AskRefused) as caught:
            await reply(question)
        refused = caught.value
        assert b"\n" not in refused.data
        assert (refused.code, json.loads(refused.data or b"null")) == (expected[0], expected[2])
        assert str(refused).startswith(expected[1])


async def test_a_refusal_that_names_a_denied_path_reaches_the_server_without_it(
    bench: Bench,
) -> None:
    await bench.hold("files", policy=ONLY_DATA)
    caller = bench.caller()
    await caller.begin("files", answers=[ELICIT])
    [call] = await bench.wait_for_calls()
    question = call.ask(ELICIT, {"message": "Which file?"})
    (ask,) = await asked(caller)
    await answer(caller, ask, b"", error=Status(code=2, message="/etc/passwd is mine"))
    assert await refusal(question) == "The caller has no answer."
    question = call.ask(ELICIT, {"message": "Which file?"})
    ask = (await asked(caller, 2))[-1]
    error = b'{"code":1,"message":"No.","data":{"path":"/etc/passwd"}}'
    await answer(caller, ask, b"", rpc_error=error)
    assert await refusal(question) == "The caller has no answer."
    question = call.ask(ELICIT, {"message": "Which file?"})
    ask = (await asked(caller, 3))[-1]
    twice = b'{"code":1,"message":"No.","data":{"path":"/etc/passwd","path":"/data/a"}}'
    await answer(caller, ask, b"", rpc_error=twice)
    with pytest.raises(AskRefused) as caught:
        await reply(question)
    assert caught.value.data == b'{"path":"/data/a"}'

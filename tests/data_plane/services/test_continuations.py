"""Unary calls that are suspended until their caller answers the server's questions."""

from __future__ import annotations

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from tests.data_plane.conftest import rpc_fault
from tests.data_plane.doubles.servers import AskRefused, MemoryAsk, MemoryCall

from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.services.continuations import Continuations
from leaseway.data_plane.services.unary import UnarySink
from leaseway.identity.principal import LOOPBACK
from leaseway.v1 import execution_pb2
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE

Bench = Any
Reply = execution_pb2.CallToolResponse
WAIT = 60.0


def request(**fields: Any) -> execution_pb2.CallToolRequest:
    if "request_state" not in fields:
        fields = {"server_id": "db", "tool": "echo", "arguments": {"text": "hi"}, **fields}
        fields.setdefault("answers", [ELICIT, SAMPLE, ROOTS])
    answers = fields.pop("input_responses", {})
    made = execution_pb2.CallToolRequest(**fields)
    for key, result in answers.items():
        made.input_responses[key].update(result)
    return made


def call_of(bench: Bench) -> MemoryCall:
    calls: list[MemoryCall] = [c for instance in bench.servers.opened for c in instance.calls]
    (call,) = calls
    return call


async def begin(bench: Bench, **fields: Any) -> tuple[asyncio.Future[Reply], MemoryCall]:
    """Start a call; return its pending response and the server's side of it."""
    reply = asyncio.ensure_future(reply_of(bench, **fields))
    await bench.until(lambda: any(instance.calls for instance in bench.servers.opened))
    return reply, call_of(bench)


async def reply_of(bench: Bench, **fields: Any) -> Reply:
    async with asyncio.timeout(WAIT):
        response: Reply = await bench.execution.CallTool(request(**fields))
        return response


async def refused(bench: Bench, **fields: Any) -> Fault:
    return await rpc_fault(reply_of(bench, **fields))


async def parked(bench: Bench, *methods: str, **fields: Any) -> tuple[Reply, list[MemoryAsk]]:
    """Suspend a call by questions; return its response and the questions."""
    reply, call = await begin(bench, **fields)
    questions = [call.ask(method, {"n": n}) for n, method in enumerate(methods)]
    return await reply, questions


def resume(
    bench: Bench, response: Reply, answers: Any = None, **fields: Any
) -> asyncio.Future[Reply]:
    """Continue a call; by default with an empty object as the answer to each question."""
    if answers is None:
        answers = {question.id: {} for question in response.input_required}
    fields = {"request_state": response.request_state, "input_responses": answers, **fields}
    return asyncio.ensure_future(reply_of(bench, **fields))


async def reply_to(question: MemoryAsk) -> Any:
    async with asyncio.timeout(WAIT):
        return await question.reply


@pytest.fixture
async def held(bench: Bench) -> Bench:
    """A worker with a shared server that leaves its calls unanswered."""
    await bench.hold("db")
    return bench


async def test_a_call_is_continued_with_the_answers(held: Bench) -> None:
    response, (name, model) = await parked(held, ELICIT, SAMPLE)
    assert [question.method for question in response.input_required] == [ELICIT, SAMPLE]
    assert MessageToDict(response.input_required[1].params) == {"n": 1.0}
    assert not response.content
    ids = [question.id for question in response.input_required]
    answers: Any = {ids[0]: {"action": "accept"}, ids[1]: {"tokens": 3, "list": [1, None]}}
    going_on = resume(held, response, answers)
    assert await reply_to(name) == {"action": "accept"}
    assert await reply_to(model) == {"tokens": 3, "list": [1, None]}
    call_of(held).answer(b'{"content":[{"type":"text","text":"done"}]}')
    assert (await going_on).content[0].text == "done"


async def test_a_call_may_ask_several_times(held: Bench) -> None:
    response, (question,) = await parked(held, ELICIT)
    states = {response.request_state}
    for _ in range(3):
        going_on = resume(held, response)
        await reply_to(question)
        question = call_of(held).ask(ROOTS)
        response = await going_on
        states.add(response.request_state)
    assert len(states) == 4
    call_of(held).answer(b"{}")


async def test_unanswered_and_new_questions_are_sent_next(held: Bench) -> None:
    response, (first, second) = await parked(held, ELICIT, SAMPLE)
    call_of(held).ask(ROOTS)
    answered: Any = {response.input_required[0].id: {}}
    following = await resume(held, response, answered)
    assert await reply_to(first) == {}
    assert [question.method for question in following.input_required] == [SAMPLE, ROOTS]
    assert following.input_required[0].id == response.input_required[1].id
    assert not second.reply.done()


async def test_a_result_that_arrives_before_the_answers_is_kept(held: Bench) -> None:
    response, _ = await parked(held, ELICIT)
    call_of(held).answer(b'{"content":[{"type":"text","text":"never mind"}]}')
    ended = await resume(held, response)
    assert ended.content[0].text == "never mind"


async def test_an_answer_to_a_withdrawn_question_is_dropped(held: Bench) -> None:
    response, (first, second) = await parked(held, ELICIT, SAMPLE)
    first.withdraw()
    going_on = resume(held, response)
    await reply_to(second)
    call_of(held).answer(b"{}")
    await going_on
    assert not first.reply.done()


async def test_a_request_state_works_once(held: Bench) -> None:
    response, (question,) = await parked(held, ELICIT)
    first = resume(held, response)
    await reply_to(question)
    again = await rpc_fault(resume(held, response))
    assert again.reason is Reason.INVALID_REQUEST
    assert "continued already" in again.message
    call_of(held).answer(b"{}")
    await first


@pytest.mark.parametrize("state", ["x", "0123456789abcdef.x", ".", "{}.x"])
async def test_a_request_state_of_another_worker_is_refused(held: Bench, state: str) -> None:
    fault = await refused(held, request_state=state)
    assert fault.reason is Reason.INVALID_REQUEST
    assert "worker that asked" in fault.message


async def test_another_tenant_cannot_continue_a_call(held: Bench) -> None:
    response, (question,) = await parked(held, ELICIT)
    (asked,) = response.input_required
    answers = {asked.id: {"a": 1}}
    fault = await rpc_fault(resume(held, response, answers, tenant="other"))
    assert fault.reason is Reason.INVALID_REQUEST
    assert not question.reply.done()
    fine = resume(held, response, answers, tenant="default")
    assert await reply_to(question) == {"a": 1}
    call_of(held).answer(b"{}")
    await fine


@pytest.mark.parametrize("key", ["0", "elicit", "-1", "1" * 5000])
async def test_an_answer_to_an_unknown_question_is_refused_and_the_call_stays_suspended(
    held: Bench, key: str
) -> None:
    response, (question,) = await parked(held, ELICIT)
    (asked,) = response.input_required
    fault = await rpc_fault(resume(held, response, {key: {}, asked.id: {}}))
    assert fault.reason is Reason.INVALID_REQUEST
    assert "never asked" in fault.message
    assert not question.reply.done()
    fine = resume(held, response)
    await reply_to(question)
    call_of(held).answer(b"{}")
    await fine


@pytest.mark.parametrize("levels", [33, 40, 900])
async def test_a_question_that_no_message_can_carry_is_refused(held: Bench, levels: int) -> None:
    reply, call = await begin(held)
    nested: Any = {}
    for _ in range(levels):
        nested = {"a": nested}
    with pytest.raises(AskRefused):
        await reply_to(call.ask(ELICIT, nested))
    with pytest.raises(AskRefused):
        await reply_to(call.ask(SAMPLE, {"n": 10**400}))
    call.answer(b'{"content":[{"type":"text","text":"done"}]}')
    assert (await reply).content[0].text == "done"


async def test_a_question_of_an_unanswered_method_is_refused_by_the_worker(
    held: Bench,
) -> None:
    reply, call = await begin(held, answers=[ROOTS])
    with pytest.raises(AskRefused, match="on_elicitation="):
        await reply_to(call.ask(ELICIT))
    call.answer(b"{}")
    assert not (await reply).input_required


async def test_cancelling_the_second_request_cancels_the_call(held: Bench) -> None:
    response, (question,) = await parked(held, ELICIT)
    (asked,) = response.input_required
    going_on = held.execution.CallTool(
        request(request_state=response.request_state, input_responses={asked.id: {}})
    )
    settled = asyncio.gather(going_on, return_exceptions=True)
    await reply_to(question)
    call = call_of(held)
    going_on.cancel()
    await held.until(lambda: call.cancelled)
    await settled


async def test_the_deadline_of_the_first_request_ends_a_suspended_call(held: Bench) -> None:
    reply = held.execution.CallTool(request(), timeout=3.0)
    await held.wait_for_calls()
    call = call_of(held)
    call.ask(ELICIT)
    response = await reply
    await held.until(lambda: call.cancelled)
    fault = await refused(held, request_state=response.request_state)
    assert fault.reason is Reason.DEADLINE_EXCEEDED


async def test_a_suspended_call_times_out(held: Bench) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", timeout=0.05)
    response, (question,) = await parked(held, ELICIT)
    with pytest.raises(AskRefused, match="has ended"):
        await reply_to(question)
    assert "did not answer within 0.05 s" in call_of(held).cancelled
    assert held.worker.executor.in_flight == 0
    fault = await refused(held, request_state=response.request_state)
    assert (fault.reason, fault.started) == (Reason.INVALID_REQUEST, "yes")
    assert "It was cancelled: its caller did not answer within 0.05 s" in fault.message


async def test_suspended_calls_are_limited(held: Bench) -> None:
    continuations = held.worker.execution.continuations = Continuations("w1", "i1")
    states = [
        (continuations.suspend(sink_of(tenant)), tenant)
        for tenant, calls in (
            ("acme", bounds.MAX_TENANT_PARKED),
            ("rival", bounds.MAX_TENANT_PARKED - 1),
        )
        for _ in range(calls)
    ]
    with pytest.raises(Fault, match=f"{bounds.MAX_TENANT_PARKED} calls of this tenant wait"):
        continuations.suspend(sink_of("acme"))
    states.append((continuations.suspend(sink_of("rival")), "rival"))
    assert len(continuations) == bounds.MAX_PARKED
    reply, call = await begin(held)
    call.ask(ELICIT)
    fault = await rpc_fault(reply)
    assert (fault.reason, fault.started) == (Reason.OVERLOADED, "yes")
    assert call.cancelled
    for state, tenant in states:
        continuations.resume(state, tenant, {}, LOOPBACK)


def sink_of(tenant: str) -> Any:
    """Return the sink of a call that does not run."""
    sink: Any = UnarySink(False, tenant)
    sink.active = SimpleNamespace(call=IncomingCall(tenant=tenant), asks=None, arguments=b"{}")
    return sink


async def test_a_request_state_contains_its_worker_and_cannot_be_guessed(held: Bench) -> None:
    states = []
    for _ in range(2):
        response, _ = await parked(held, ELICIT)
        states.append(response.request_state)
        call_of(held).answer(b"{}")
    incarnation = held.first_hello.worker.incarnation
    assert all(re.fullmatch(rf"{incarnation}\.[\w-]{{32}}", state) for state in states)
    assert len(set(states)) == 2


async def test_the_new_lease_of_a_call_is_sent_with_its_questions(bench: Bench) -> None:
    await bench.hold("db", shared=False)
    response, _ = await parked(bench, ELICIT, session="s1")
    assert response.new_lease.session == "s1"
    going_on = resume(bench, response)
    await bench.until(lambda: not len(bench.worker.execution.continuations))
    call_of(bench).answer(b"{}")
    assert (await going_on).new_lease.id == response.new_lease.id


async def test_a_streaming_call_ends_its_stream_with_the_questions(held: Bench) -> None:
    stream = held.execution.CallToolStreaming(
        execution_pb2.CallToolStreamingRequest(call=request(), log_level="info")
    )
    events = asyncio.ensure_future(_all(stream))
    await held.wait_for_calls()
    call = call_of(held)
    assert call.request.callbacks.on_progress is not None
    call.request.callbacks.on_progress(1.0, 2.0, "half")
    question = call.ask(ELICIT)
    progress, asked = await events
    assert progress.progress.message == "half"
    state, (wanted,) = asked.result.request_state, asked.result.input_required
    call.request.callbacks.on_progress(1.5, 2.0, "while it waits")
    continued = held.execution.CallToolStreaming(
        execution_pb2.CallToolStreamingRequest(
            call=request(request_state=state, input_responses={wanted.id: {}})
        )
    )
    events = asyncio.ensure_future(_all(continued))
    await reply_to(question)
    call.answer(b"{}")
    kinds = [event.WhichOneof("event") for event in await events]
    assert kinds == ["progress", "result"]


async def _all(stream: Any) -> list[Any]:
    async with asyncio.timeout(WAIT):
        return [event async for event in stream]


def text_result(size: int) -> bytes:
    """Return a result of this size."""
    around = len(b'{"content":[{"type":"text","text":""}]}')
    return b'{"content":[{"type":"text","text":"%b"}]}' % (b"x" * (size - around))


async def several_parked(bench: Bench, count: int) -> tuple[list[Reply], list[MemoryCall]]:
    """Suspend calls one after the other; return their responses and the server's sides."""
    responses: list[Reply] = []
    calls: list[MemoryCall] = []
    for number in range(count):
        reply = asyncio.ensure_future(reply_of(bench))
        calls.append((await bench.wait_for_calls(number + 1))[number])
        calls[number].ask(ELICIT)
        responses.append(await reply)
    return responses, calls


async def test_suspended_calls_beyond_the_memory_limit_discard_the_oldest(
    held: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", max_bytes=3000)
    responses, calls = await several_parked(held, 3)
    for call in (calls[1], calls[0]):
        call.answer(text_result(1200))
    assert len(held.worker.execution.continuations) == 3
    calls[2].answer(text_result(1200))
    await held.until(lambda: len(held.worker.execution.continuations) == 2)
    fault = await refused(held, request_state=responses[0].request_state)
    assert (fault.reason, fault.started) == (Reason.OVERLOADED, "yes")
    assert "Its result was dropped: calls that wait for their callers hold more" in fault.message
    assert "call of db:echo without an exchange: its result was dropped" in caplog.text
    for response in responses[1:]:
        ended = await reply_of(held, request_state=response.request_state)
        assert ended.content[0].text.startswith("xxx")


async def test_a_discarded_call_without_a_result_is_cancelled(held: Bench) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", max_bytes=1000)
    responses, calls = await several_parked(held, 2)
    calls[1].answer(text_result(950))
    await held.until(lambda: calls[0].cancelled)
    fault = await refused(held, request_state=responses[0].request_state)
    assert "It was cancelled: calls that wait" in fault.message
    assert (await reply_of(held, request_state=responses[1].request_state)).content


async def test_questions_count_as_memory_of_suspended_calls(held: Bench) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", max_bytes=5000)
    _response, _ = await parked(held, ELICIT)
    call = call_of(held)
    for _ in range(15):
        call.ask(ELICIT, {"message": "x" * 100}).withdraw()
    sink = next(iter(held.worker.execution.continuations._suspended.values())).sink
    assert sink.held_bytes < 500, "what was taken back is not kept"
    call.ask(ELICIT, {"message": "x" * 5000})
    await held.until(lambda: call.cancelled)


async def test_another_tenant_does_not_learn_of_a_discarded_call(held: Bench) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", max_bytes=10)
    response, _ = await parked(held, ELICIT)
    await held.until(lambda: call_of(held).cancelled)
    fault = await refused(held, request_state=response.request_state, tenant="other")
    assert "continued already" in fault.message
    mine = await refused(held, request_state=response.request_state)
    assert mine.reason is Reason.OVERLOADED


async def test_a_drain_shortens_the_timeout_of_suspended_calls(held: Bench) -> None:
    held.worker.execution.continuations = Continuations("w1", "i1", drain_timeout=0.05)
    (asked, _with_result), calls = await several_parked(held, 2)
    calls[1].answer(text_result(100))
    caller = held.caller()
    in_flight = await caller.begin("db")
    await held.wait_for_calls(2)
    going_on = held.servers.opened[0].calls[1]
    held.shutdown.request("a test wants it")
    await held.until(lambda: calls[0].cancelled and not len(held.worker.execution.continuations))
    fault = await refused(held, request_state=asked.request_state)
    assert fault.reason is Reason.DRAINING
    assert "worker w1 is draining and its caller did not answer within 0.05 s" in fault.message
    going_on.answer(b"{}")
    assert (await caller.result(in_flight)).payload == b"{}"
    await held.until(lambda: not held.servers.live)


async def test_a_draining_worker_still_returns_the_result_of_a_suspended_call(
    held: Bench,
) -> None:
    response, _ = await parked(held, ELICIT)
    call_of(held).answer(text_result(100))
    held.shutdown.request("a test wants it")
    await held.plane.expect_report(lambda report: report.draining)
    ended = await reply_of(held, request_state=response.request_state)
    assert ended.content[0].text.startswith("xxx")
    await held.until(lambda: not held.servers.live)

"""Errors, delays and holds that a test injects, and what tools send during calls."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.sdk.fakes import BOUND

from leaseway.sdk import (
    Approval,
    ConfirmationRequired,
    DeadlineExceeded,
    Draining,
    InputRequired,
    InvalidRequest,
    LogMessage,
    PermissionDenied,
    Progress,
    RateLimited,
    ServerError,
    ServerLost,
)
from leaseway.sdk.testing import CallContext, FakeLeaseway


@pytest.mark.parametrize(
    "error",
    [
        ServerLost("It died.", metadata={"exit_status": "137", "stderr": "oh"}),
        ServerError("No.", metadata={"code": "-32000", "data": '{"a": 1}'}),
        RateLimited("Slower.", retry_after=3_600),  # longer than the call's timeout
        DeadlineExceeded("Late."),
        PermissionDenied("No.", started="unknown"),
    ],
)
def test_an_injected_error_reaches_the_caller_unchanged(fake: FakeLeaseway, error: Any) -> None:
    client = fake.client()
    fake.fail_next("add", error)
    with pytest.raises(type(error)) as caught:
        client.call_tool("add", {"a": 1})
    assert caught.value.message == error.message
    assert caught.value.retry_after == error.retry_after
    assert dict(caught.value.metadata) == dict(error.metadata)
    assert client.call_tool("add", {"a": 1}).text == "2"
    assert len(fake.calls) == 2


def test_clients_retry_injected_errors_as_usual(fake: FakeLeaseway) -> None:
    fake.fail_next("add", Draining("Going."), times=2)
    assert fake.client().call_tool("add", {"a": 1}).text == "2"
    assert len(fake.calls) == 3


def test_a_delayed_call_exceeds_its_timeout(fake: FakeLeaseway) -> None:
    client = fake.client()
    client.list_tools()
    fake.delay_next("add", 30)
    with pytest.raises(DeadlineExceeded):
        client.call_tool("add", {"a": 1}, timeout=1.0)
    assert client.call_tool("add", {"a": 1}, timeout=BOUND).text == "2"


def test_methods_reject_an_unknown_tool(fake: FakeLeaseway) -> None:
    for use in (
        lambda: fake.fail_next("ad", ServerLost("x")),
        lambda: fake.delay_next("ad", 1),
        lambda: fake.hold("ad"),
        lambda: fake.remove_tool("ad"),
    ):
        with pytest.raises(ValueError, match="Did you mean 'add'"):
            use()


def test_only_leaseway_errors_can_be_injected(fake: FakeLeaseway) -> None:
    for error in (ValueError("x"), ServerLost):
        with pytest.raises(TypeError, match="error must be one that clients raise, such as"):
            fake.fail_next("add", error)  # type: ignore[arg-type]
    assert fake.client().call_tool("add", {"a": 1}).text == "2"


async def test_a_cancelled_call_cancels_the_tool(fake: FakeLeaseway) -> None:
    ended = threading.Event()
    begun = threading.Event()

    @fake.tool
    async def forever() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with fake.async_client() as client:
        call = asyncio.create_task(client.call_tool("forever"))
        await asyncio.to_thread(begun.wait, BOUND)
        call.cancel()
        assert await asyncio.to_thread(ended.wait, BOUND)


async def test_a_call_is_cancelled_even_if_its_client_is_closed_at_once(
    fake: FakeLeaseway,
) -> None:
    ended = threading.Event()
    begun = threading.Event()

    @fake.tool
    async def forever() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    client = fake.async_client()
    call = asyncio.create_task(client.call_tool("forever"))
    await asyncio.to_thread(begun.wait, BOUND)
    call.cancel()
    await client.close()
    assert await asyncio.to_thread(ended.wait, BOUND)


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_progress_and_logs_arrive_in_order_before_the_result(
    fake: FakeLeaseway, kind: str
) -> None:
    def say(context: CallContext) -> str:
        context.progress(1, 2, "half")
        context.log({"n": 1}, "warning", "builder")
        context.log("too little", "debug")
        context.progress(2)
        return "built"

    async def say_async(context: CallContext) -> str:
        return say(context)

    fake.tool(name="build")(say if kind == "plain" else say_async)
    seen: list[Progress | LogMessage] = []
    async with (
        fake.async_client() as client,
        client.stream_tool("build", log_level="info") as stream,
    ):
        seen = [event async for event in stream]
        assert stream.result.text == "built"
        assert (await client.call_tool("build")).text == "built"
    logs = [event for event in seen if isinstance(event, LogMessage)]
    steps = [event.progress for event in seen if isinstance(event, Progress)]
    assert [(log.level, log.logger, log.data) for log in logs] == [("warning", "builder", {"n": 1})]
    assert steps == [1, 2]


def serve_bank(fake: FakeLeaseway) -> None:
    @fake.server("bank", prefix="bank_").tool(needs_approval=True)
    def pay(amount: int) -> str:
        return f"paid {amount}"


def test_a_tool_that_needs_approval_waits_for_a_person(fake: FakeLeaseway) -> None:
    serve_bank(fake)
    client = fake.client()
    with pytest.raises(ConfirmationRequired):
        client.call_tool("bank_pay", {"amount": 1})
    (approval,) = client.approvals()
    client.approve(approval.id)
    assert client.call_tool("bank_pay", {"amount": 1}).text == "paid 1"
    assert [call.arguments for call in fake.calls] == [{"amount": 1}]
    asked = fake.client(on_approval=lambda _: False)
    with pytest.raises(PermissionDenied):
        asked.call_tool("bank_pay", {"amount": 2})


@pytest.mark.parametrize("is_approved", [True, False])
def test_what_another_approver_decides_while_a_person_is_asked_counts(
    fake: FakeLeaseway, is_approved: bool
) -> None:
    serve_bank(fake)
    other = fake.client()

    def decide_elsewhere(approval: Approval) -> bool:
        (other.approve if is_approved else other.deny)(approval.id)
        return True

    client = fake.client(on_approval=decide_elsewhere)
    if is_approved:
        assert client.call_tool("bank_pay", {"amount": 1}).text == "paid 1"
    else:
        with pytest.raises(PermissionDenied):
            client.call_tool("bank_pay", {"amount": 1})


def test_a_call_that_its_user_denies_does_not_run_though_another_approver_allows_it(
    fake: FakeLeaseway,
) -> None:
    serve_bank(fake)
    other = fake.client()

    def decide_elsewhere(approval: Approval) -> bool:
        other.approve(approval.id)
        return False

    with pytest.raises(InvalidRequest, match="was already approved by"):
        fake.client(on_approval=decide_elsewhere).call_tool("bank_pay", {"amount": 1})
    assert fake.calls == []


async def test_a_tool_can_send_its_caller_a_request(fake: FakeLeaseway) -> None:
    @fake.tool
    async def order(context: CallContext) -> str:
        answer = await context.ask("elicitation/create", {"message": "Sure?"})
        return str(answer["action"])

    def agree(params: dict[str, Any]) -> dict[str, Any]:
        assert params == {"message": "Sure?"}
        return {"action": "decline"}

    async with fake.async_client() as client:
        assert (await client.call_tool("order", on_elicitation=agree)).text == "decline"
        with pytest.raises(InputRequired, match="elicitation/create"):
            await client.call_tool("order")


async def test_cancelling_a_tools_request_cancels_the_handler(
    fake: FakeLeaseway,
) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()
    give_up = threading.Event()

    @fake.tool
    async def impatient(context: CallContext) -> str:
        question = asyncio.create_task(context.ask("elicitation/create", {}))
        await asyncio.to_thread(give_up.wait, BOUND)
        question.cancel()
        await asyncio.to_thread(given_up.wait, BOUND)
        return "went on"

    async def on_elicitation(params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return {"action": "decline"}

    given_up = threading.Event()
    async with fake.async_client(on_elicitation=on_elicitation) as client:
        async with asyncio.timeout(BOUND):
            call = asyncio.create_task(client.call_tool("impatient"))
            await asked.wait()
            give_up.set()
            await ended.wait()  # while the call is running
            given_up.set()
            assert (await call).text == "went on"

"""Callbacks of the synchronous client that turn out to be asynchronous: they are refused."""

from __future__ import annotations

from typing import Any

import pytest

from leaseway.sdk import Client
from leaseway.sdk.testing import CallContext, FakeLeaseway


async def report(*_: object) -> None:
    raise AssertionError("nobody awaits this")


class Reporter:
    async def __call__(self, *_: object) -> None:
        await report()


def test_an_object_whose_call_is_async_is_refused_before_the_call() -> None:
    for option in ("on_progress", "on_log", "on_elicitation", "on_approval"):
        options: dict[str, Any] = {option: Reporter()}
        with pytest.raises(TypeError, match=f"{option} of the synchronous client"):
            Client("127.0.0.1:1").call_tool("build", **options)


@pytest.mark.parametrize("option", ["on_progress", "on_log"])
def test_a_callback_that_returns_a_coroutine_fails_the_call(option: str) -> None:
    with FakeLeaseway() as fake:

        @fake.tool
        def build(context: CallContext) -> str:
            context.progress(1, 2)
            context.log("half", level="info")
            return "done"

        options: dict[str, Any] = {option: lambda *event: report(*event)}
        with pytest.raises(TypeError, match=f"{option} of the synchronous client"):
            fake.client().call_tool("build", **options)


def test_an_approval_that_nobody_has_decided_stays_open() -> None:
    with FakeLeaseway() as fake:

        @fake.tool(needs_approval=True)
        def pay() -> str:
            return "paid"

        client = fake.client()
        with pytest.raises(TypeError, match="on_approval of the synchronous client"):
            client.call_tool("pay", on_approval=lambda approval: report(approval))
        (approval,) = client.approvals()
        client.approve(approval.id)
        assert client.call_tool("pay").text == "paid"

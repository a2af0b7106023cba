"""A client that unsubscribes while its subscription is not confirmed gets a response to both."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, cast

import pytest
from tests.conftest import BOUND

from leaseway.front.lists.ui_resources import ServerResource
from leaseway.front.protocol.messages import JsonRpcError
from leaseway.front.sessions import live_session
from leaseway.front.sessions.live_session import LiveSession
from leaseway.front.sessions.sealing import SealedSession

URI = "note:a"


class _Updates:
    """Updates of a resource, whose server does not confirm that it sends them until it may."""

    def __init__(self, sdk: _Sdk) -> None:
        self._begun = sdk.begun
        self._may_confirm = sdk.may_confirm
        self._end = sdk.end

    async def __aenter__(self) -> _Updates:
        self._begun.set()
        await self._may_confirm.wait()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return

    def __aiter__(self) -> _Updates:
        return self

    async def __anext__(self) -> str:
        await self._end.wait()
        raise StopAsyncIteration


class _Sdk:
    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_confirm = asyncio.Event()
        self.end = asyncio.Event()

    def subscribe_resource(self, uri: str, *, server: str | None) -> _Updates:
        assert (uri, server) == (URI, "notes")
        return _Updates(self)


@pytest.fixture(autouse=True)
def _speaks_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_session, "speak_for", lambda _session, _client: None)


def session(sdk: _Sdk) -> LiveSession:
    sealed = SealedSession("k", "t", "", "2025-11-25", {}, 0.0)
    return LiveSession(sealed, "s", cast("Any", sdk), lambda _server, _params: None)


async def subscribe(live: LiveSession) -> None:
    await live.subscribe(URI, live.sdk, ServerResource(URI, "notes"))


@pytest.mark.parametrize("has_begun", [False, True])
async def test_who_unsubscribes_before_the_confirmation_gets_an_error_for_the_subscription(
    has_begun: bool,
) -> None:
    sdk = _Sdk()
    live = session(sdk)
    subscribing = asyncio.create_task(subscribe(live))

    async def unsubscribe() -> None:
        if has_begun:
            await sdk.begun.wait()
        await live.unsubscribe(URI)

    unsubscribing = asyncio.create_task(unsubscribe())
    async with asyncio.timeout(BOUND):
        with pytest.raises(JsonRpcError, match="before its server had confirmed it"):
            await subscribing
        await unsubscribing


async def test_a_subscription_that_was_given_up_does_not_end_the_next_one() -> None:
    sdk = _Sdk()
    live = session(sdk)
    async with asyncio.timeout(BOUND):
        first = asyncio.create_task(subscribe(live))
        await sdk.begun.wait()
        unsubscribing = asyncio.create_task(live.unsubscribe(URI))
        second = asyncio.create_task(subscribe(live))
        with pytest.raises(JsonRpcError):
            await first
        sdk.may_confirm.set()
        await asyncio.gather(second, unsubscribing)
        await live.stop()


async def test_a_subscription_that_has_ended_begins_again_also_at_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_session, "MAX_SUBSCRIPTIONS", 1)
    sdk = _Sdk()
    sdk.may_confirm.set()
    live = session(sdk)
    async with asyncio.timeout(BOUND):
        await subscribe(live)
        sdk.end.set()
        while not live._subscriptions[URI].has_ended:
            await asyncio.sleep(0)
        sdk.end.clear()
        await subscribe(live)
        other = live.subscribe("note:b", live.sdk, ServerResource("note:b", "notes"))
        with pytest.raises(JsonRpcError, match="at most 1 subscriptions"):
            await other
        await live.stop()

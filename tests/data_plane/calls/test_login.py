"""Calls that wait for a login."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from tests.conftest import BOUND

from leaseway.data_plane.calls.call import ActiveCall
from leaseway.data_plane.calls.login import with_login, with_next_login
from leaseway.data_plane.core.calls.call import Ask
from leaseway.data_plane.instances.login_watcher import LoginWatcher
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT_URL

REQUIRED = Fault(Reason.LOGIN_REQUIRED, "Log in.", metadata={"url": "https://c.example/login"})


class Logins:
    """Logins that change when a test says so."""

    def __init__(self) -> None:
        self.changes = 0
        self.unfollowed = 0
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def look(self) -> None:
        for _ in range(self.unfollowed):
            self.change()
        self.unfollowed = 0

    def change(self) -> None:
        self.changes += 1
        self._next.set_result(None)
        self._next = asyncio.get_running_loop().create_future()

    def next_change(self) -> asyncio.Future[None]:
        return self._next


def calling(ask: Callable[[Ask], None]) -> ActiveCall:
    """Return a call whose caller opens addresses."""
    active = SimpleNamespace(
        call=SimpleNamespace(answers=frozenset({ELICIT_URL})),
        deadline=asyncio.get_running_loop().time() + 20,
        was_asked_to_log_in=False,
        login_changes=None,
        event=lambda _text: None,
        ask=ask,
    )
    return cast("ActiveCall", active)


async def test_a_caller_is_asked_for_a_login_after_logins_of_others_have_changed() -> None:
    logins, asked = Logins(), list[Ask]()
    active = calling(asked.append)

    async def sent_again() -> None:
        await with_next_login(cast("LoginWatcher", logins), REQUIRED, active)

    logins.unfollowed = 1
    await sent_again()
    logins.change()
    await sent_again()
    assert not asked
    waiting = asyncio.create_task(sent_again())
    async with asyncio.timeout(BOUND):
        while not asked and not waiting.done():
            await asyncio.sleep(0)
    assert len(asked) == 1
    asked[0].answer(b'{"action":"accept"}')
    logins.change()
    await waiting


async def test_a_login_counts_that_comes_while_a_call_is_tried_again() -> None:
    logins, tries = Logins(), 0
    logins.unfollowed = 1

    async def find(_active: ActiveCall) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            logins.change()  # after it has looked for its login
        if tries < 3:
            raise REQUIRED

    active = calling(lambda ask: ask.answer(b'{"action":"accept"}'))
    async with asyncio.timeout(BOUND):
        await with_login(active, cast("LoginWatcher", logins), find)
    assert tries == 3

"""What one user of the console takes is not taken from the others."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from tests.conftest import BOUND
from tests.console.admitting import AdmittedBy

from leaseway.control_plane.console import access, live
from leaseway.control_plane.console.access import ConsoleAccess
from leaseway.control_plane.console.live import Live, TooManyPages
from leaseway.control_plane.console.records import ServerRows
from leaseway.control_plane.operators.inspector import Inspector
from leaseway.control_plane.plane import Plane
from leaseway.identity.principal import Principal, Role
from leaseway.wire.sharing.fair_shares import Holder


async def test_one_users_pages_make_room_for_another_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "MAX_PAGES", 3)
    plane = Plane(epoch=1)
    pages = Live(plane, Inspector(plane), ServerRows(plane))
    greedy, other = Holder("acme", "greedy"), Holder("acme", "other")
    with ExitStack() as stack:
        opened = [stack.enter_context(pages.page(greedy)) for _ in range(3)]
        with pytest.raises(TooManyPages):
            stack.enter_context(pages.page(greedy))
        stack.enter_context(pages.page(other))
        async with asyncio.timeout(BOUND):
            assert await opened[0].get() is None, "the oldest page is closed"
        assert not opened[1].empty()


async def test_signing_in_again_and_again_signs_nobody_else_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(access, "_MAX_SESSIONS", 5)
    principals = {f"Bearer {name}": Principal(name, frozenset({Role.VIEWER})) for name in "ab"}

    async def admit(authorization: str | None) -> Principal:
        return principals[authorization or ""]

    console = ConsoleAccess(AdmittedBy(admit), lambda: 0.0)
    kept, _ = await console.sign_in("b")
    for _ in range(20):
        last, _ = await console.sign_in("a")
    assert {kept, last} <= set(console._sessions)
    assert len(console._sessions) == 5

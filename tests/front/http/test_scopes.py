"""Whether the server in a URL exists, also while the control plane does not say."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from tests.conftest import BOUND

from leaseway.front.http import scopes
from leaseway.front.http.request_checks import HttpError
from leaseway.front.http.scopes import Scopes
from leaseway.sdk import ControlPlaneUnavailable, LeasewayError, PermissionDenied, ToolNotFound

AWAY = ControlPlaneUnavailable("The control plane does not answer.")


class _Client:
    """A client that lists, or fails as it is told; while `answers` is cleared it does neither."""

    def __init__(self) -> None:
        self.client = self
        self.error: LeasewayError | None = None
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def list_tools(self, servers: Sequence[str], timeout: float | None = None) -> None:
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture(autouse=True)
def _asks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scopes, "_TTL", -1.0)


async def status(checked: Scopes) -> int:
    try:
        await checked.check("files")
    except HttpError as error:
        return error.status
    return 200


async def test_a_known_server_exists_while_the_control_plane_is_away() -> None:
    client = _Client()
    checked = Scopes(cast("Any", client))
    assert await status(checked) == 200
    client.error = AWAY
    assert [await status(checked) for _ in range(2)] == [200, 200]
    client.error = ToolNotFound("There is no server 'files'.")
    assert await status(checked) == 404
    client.error = AWAY
    assert await status(checked) == 503


async def test_an_unknown_server_is_not_said_to_be_missing_while_the_control_plane_is_away() -> (
    None
):
    client = _Client()
    client.error = AWAY
    assert await status(Scopes(cast("Any", client))) == 503


async def test_a_caller_that_is_refused_is_not_told_to_try_again() -> None:
    client = _Client()
    checked = Scopes(cast("Any", client))
    assert await status(checked) == 200
    client.error = PermissionDenied("The credential does not allow this.")
    assert await status(checked) == 404


async def test_one_request_asks_again_for_a_known_server(monkeypatch: pytest.MonkeyPatch) -> None:
    client = _Client()
    checked = Scopes(cast("Any", client))
    assert await status(checked) == 200
    monkeypatch.setattr(scopes, "_TTL", BOUND)
    client.answers.clear()
    asking = asyncio.create_task(status(checked))
    async with asyncio.timeout(BOUND):
        while client.asked < 2:
            await asyncio.sleep(0)
        assert await status(checked) == 200
        client.answers.set()
        assert await asking == 200
    assert client.asked == 2

"""The pages of logins, as a browser with several tabs uses them."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from leaseway.control_plane.console.login_pages import LoginPages
from leaseway.control_plane.sync.login_steps import LoginSteps
from leaseway.v1 import sync_pb2

SITE = {"Sec-Fetch-Site": "same-origin"}


class Steps:
    """Takes the steps of a worker whose tickets are the names of users.

    Attributes:
        finished: The users that have logged in.
    """

    def __init__(self) -> None:
        self.finished: list[str] = []
        self._begun: Counter[str] = Counter()

    async def take(self, worker_id: str, step: sync_pb2.LoginStep) -> sync_pb2.LoginResult:
        assert worker_id == "worker-1"
        user = step.ticket or step.state.partition("-")[0]
        state = f"{user}-{self._begun[user]}"
        if step.state:
            self.finished.append(user)
        else:
            self._begun[user] += 1
        return sync_pb2.LoginResult(
            server_id="mail",
            tenant="acme",
            user=user,
            state=state,
            authorization_url="https://login.example.com/authorize",
        )


@pytest.fixture
async def site() -> AsyncIterator[tuple[str, Steps]]:
    app, steps = web.Application(), Steps()
    server = TestServer(app)
    pages = LoginPages(cast("LoginSteps", steps), "http://127.0.0.1/", is_open=False)
    pages.add_routes(app.router)
    await server.start_server()
    try:
        yield f"http://127.0.0.1:{server.port}", steps
    finally:
        await server.close()


def browser() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))


async def begin(tab: aiohttp.ClientSession, site: str, user: str) -> None:
    """Continue on the page of a link."""
    async with tab.post(f"{site}/login/worker-1/{user}", headers=SITE) as response:
        assert response.status == 200
        [cookie] = response.cookies.values()
        assert cookie["path"] == "/login/callback"
        assert cookie["httponly"]


async def test_a_login_behind_a_proxy_is_finished_below_the_address_of_the_console() -> None:
    app, steps = web.Application(), Steps()
    address = "https://ops.example.com/leaseway/"
    LoginPages(cast("LoginSteps", steps), address, is_open=False).add_routes(app.router)
    async with TestServer(app) as server, browser() as tab:
        url = f"http://127.0.0.1:{server.port}/login/worker-1/anna"
        for origin, status in (("https://ops.example.com", 200), ("https://evil.example", 403)):
            async with tab.post(url, headers={**SITE, "Origin": origin}) as response:
                assert response.status == status
                if status == 200:
                    [cookie] = response.cookies.values()
                    assert cookie["path"] == "/leaseway/login/callback"
                    assert 'href="/leaseway/style.css"' in await response.text()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
async def test_logins_in_several_tabs_of_a_browser_all_finish(
    site: tuple[str, Steps], order: tuple[int, ...]
) -> None:
    url, steps = site
    async with browser() as tab, browser() as other:
        # All are begun before any of them gets its cookie, two of them for one user.
        users = ("anna", "bob", "anna")
        await asyncio.gather(*(begin(tab, url, user) for user in users))
        states = ("anna-0", "bob-0", "anna-1")
        for number in order:
            callback = f"{url}/login/callback?code=x&state={states[number]}"
            async with other.get(callback) as response:
                assert response.status == 403  # another browser
            async with tab.get(callback) as response:
                assert response.status == 200
                assert re.search(rf"<b>{users[number]}</b>", await response.text())
            async with tab.get(callback) as response:
                assert response.status == 403  # a page that is loaded again
        assert steps.finished == [users[number] for number in order]
        assert not list(tab.cookie_jar)

"""The links at which people log in."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.core.ports import LoginSubject
from leaseway.data_plane.oauth.logins import links as module
from leaseway.data_plane.oauth.logins.clients import LoginClient, PlannedLogin
from leaseway.data_plane.oauth.logins.links import LoginLinks
from leaseway.data_plane.oauth.logins.login import BegunLogin
from leaseway.data_plane.oauth.metadata import AuthorizationServer, Discovered
from leaseway.data_plane.oauth.obtaining import Wanted
from leaseway.data_plane.oauth.requests import Client
from leaseway.spec.auth import Auth
from leaseway.vault.clients import ClientStore
from leaseway.vault.logins import LoginStore
from leaseway.wire import bounds
from leaseway.wire.errors import Fault

MAIL = Wanted(
    server="mail",
    url="https://mail.example/mcp",
    auth=Auth("authorization_code", "user"),
    client=Client("c"),
    tenant="acme",
)


async def test_a_slow_authorization_server_holds_up_no_login_of_another_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proceed = threading.Event()
    began = queue.Queue[str]()

    def begin(wanted: Wanted, _store: object, _redirect: str) -> SimpleNamespace:
        began.put(wanted.server)
        if wanted.server == "mail":
            assert proceed.wait(BOUND)
        return SimpleNamespace(state=wanted.user + wanted.server, url="u", wanted=wanted)

    monkeypatch.setattr(module, "begin_login", begin)
    links = LoginLinks(cast("LoginStore", object()), "w1")
    links.record(MAIL)
    links.record(replace(MAIL, server="files"))
    users = [f"u{number}" for number in range(24)]
    slow = [links.link(LoginSubject("mail", "acme", user)) for user in users]
    waiting = [asyncio.create_task(links.begin(ticket, "r")) for ticket in slow]
    try:
        for _ in range(8):
            assert await asyncio.to_thread(began.get, timeout=BOUND) == "mail"
        async with asyncio.timeout(BOUND):
            await links.begin(links.link(LoginSubject("files", "acme", "anna")), "r")
        assert (began.get(), began.qsize()) == ("files", 0)
        with pytest.raises(Fault, match="many people are logging in to mail"):
            async with asyncio.timeout(BOUND):
                await links.begin(links.link(LoginSubject("mail", "acme", "zoe")), "r")
    finally:
        proceed.set()
        await asyncio.gather(*waiting)
    assert began.qsize() == 16
    await links.begin(links.link(LoginSubject("mail", "acme", "zoe")), "r")


async def test_however_many_authorization_servers_are_slow_one_more_lets_a_login_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proceed = threading.Event()

    def begin(wanted: Wanted, _store: object, _redirect: str) -> SimpleNamespace:
        assert wanted.server == "mail" or proceed.wait(BOUND)
        return SimpleNamespace(state=wanted.user + wanted.server, url="u", wanted=wanted)

    monkeypatch.setattr(module, "begin_login", begin)
    links = LoginLinks(cast("LoginStore", object()), "w1")
    servers = [f"slow{number}" for number in range(12)]
    for server in ["mail", *servers]:
        links.record(replace(MAIL, server=server))
    waiting = [
        asyncio.create_task(links.begin(links.link(LoginSubject(server, "acme", user)), "r"))
        for server in servers
        for user in map(str, range(24))
    ]
    try:
        async with asyncio.timeout(BOUND):
            await links.begin(links.link(LoginSubject("mail", "acme", "anna")), "r")
    finally:
        proceed.set()
        results = await asyncio.gather(*waiting, return_exceptions=True)
    begun = [result for result in results if not isinstance(result, Fault)]
    assert 12 <= len(begun) <= 96 + 12


async def test_who_waits_long_for_a_slow_authorization_server_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proceed = threading.Event()

    def begin(wanted: Wanted, _store: object, _redirect: str) -> SimpleNamespace:
        assert proceed.wait(BOUND)
        return SimpleNamespace(state=wanted.user, url="u", wanted=wanted)

    monkeypatch.setattr(module, "begin_login", begin)
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    links = LoginLinks(cast("LoginStore", object()), "w1")
    links.record(MAIL)
    tickets = [links.link(LoginSubject("mail", "acme", str(number))) for number in range(9)]
    running = [asyncio.create_task(links.begin(ticket, "r")) for ticket in tickets[:8]]
    try:
        await asyncio.sleep(0)
        with pytest.raises(Fault, match="open the link again later"):
            async with asyncio.timeout(BOUND):
                await links.begin(tickets[8], "r")
    finally:
        proceed.set()
        await asyncio.gather(*running)


async def test_one_tenants_links_and_logins_displace_no_other_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(wanted: Wanted, _store: object, _redirect: str) -> SimpleNamespace:
        return SimpleNamespace(state=wanted.tenant + wanted.user, url="u", wanted=wanted)

    monkeypatch.setattr(module, "begin_login", begin)
    monkeypatch.setattr(module, "finish_login", lambda *_: None)
    monkeypatch.setattr(module, "_MAX_BEGUN", 4)
    monkeypatch.setattr(bounds, "MAX_OAUTH_GRANTS", 8)
    links = LoginLinks(cast("LoginStore", object()), "w1")
    links.record(replace(MAIL, tenant=""))
    own = links.link(LoginSubject("mail", "acme", "anna"))
    _, state = await links.begin(own, "r")
    many = [links.link(LoginSubject("mail", "noisy", f"u{number}")) for number in range(12)]
    for ticket in many[-6:]:
        await links.begin(ticket, "r")
    assert links.subject(own).user == "anna"
    with pytest.raises(Fault, match="ended"):
        links.subject(many[0])
    assert links.subject(many[-1]).user == "u11"
    assert await links.finish(state, {}) == LoginSubject("mail", "acme", "anna")
    with pytest.raises(Fault, match="took too long"):
        await links.finish("noisyu6", {})
    assert (await links.finish("noisyu11", {})).user == "u11"


@pytest.mark.parametrize("user", ["anna", "bob"])
async def test_a_login_ends_what_others_have_begun_at_its_link(
    monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    states, finished = itertools.count(), []

    def begin(wanted: Wanted, _store: object, redirect: str) -> BegunLogin:
        found = Discovered(AuthorizationServer("https://as.example", ""), "")
        return BegunLogin(
            planned=PlannedLogin(
                wanted=wanted,
                server=found.server,
                kind=redirect,
                scopes=(),
                store=cast("ClientStore", object()),
            ),
            found=found,
            client=LoginClient(wanted.client, is_configured=True),
            redirect=redirect,
            state=str(next(states)),
            verifier="v",
            url="https://u",
        )

    def finish(begun: BegunLogin, _answer: object, _store: object) -> None:
        finished.append(begun.state)

    monkeypatch.setattr(module, "begin_login", begin)
    monkeypatch.setattr(module, "finish_login", finish)
    links = LoginLinks(cast("LoginStore", object()), "w1")
    links.record(MAIL)
    ticket = links.link(LoginSubject("mail", "acme", "anna"))
    _, other = await links.begin(ticket, "https://console.example/login/callback")
    _, annas = await links.begin(ticket, "https://console.example/login/callback")
    if user == "bob":  # a login of another user leaves hers alone
        ticket = links.link(LoginSubject("mail", "acme", "bob"))
        _, annas = await links.begin(ticket, "https://console.example/login/callback")
    assert (await links.finish(annas, {"code": "x"})).user == user
    if user == "bob":
        assert (await links.finish(other, {"code": "y"})).user == "anna"
        return
    with pytest.raises(Fault, match="in another tab"):
        await links.finish(other, {"code": "y"})
    assert finished == [annas]

"""The console's HTTP API: access, security headers and responses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest
from aiohttp import web
from tests.conftest import BOUND
from tests.console.admitting import AdmittedBy
from tests.control_plane.console.conftest import Asker, Open
from tests.control_plane.core.builders import PAY, hello, spec
from tests.specs import changed
from yarl import URL

from leaseway.control_plane.console import live
from leaseway.control_plane.console.live import ResponseCache
from leaseway.control_plane.console.records import ServerRows
from leaseway.control_plane.console.server import ConsoleListener, serve_console
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.plane import Plane
from leaseway.identity.authenticator import authenticator_for
from leaseway.identity.keys import add_key, make_key, revoke_key
from leaseway.identity.principal import SEES_ALL, Principal, Role
from leaseway.identity.tokens import MAX_TOKEN
from leaseway.spec.model import VariantKey
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.messages.events import EventRecord

_KEY = "a-key-that-nobody-guesses"


async def test_the_page_and_all_it_loads_may_only_run_its_own_scripts(console: Open) -> None:
    _plane, asker = await console(None)
    async with asker.session.get(asker.url) as answer:
        policy = answer.headers["Content-Security-Policy"]
        page = await answer.text()
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    for name in ("app.js", "style.css", "vendor/preact-htm.js"):
        async with asker.session.get(asker.url + name) as answer:
            assert answer.status == 200
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "http://" not in page
    assert "https://" not in page


async def test_no_file_of_the_page_writes_raw_markup_or_loads_other_origins(console: Open) -> None:
    _plane, asker = await console(None)
    own = (
        "app",
        "parts",
        "overview",
        "servers",
        "tools",
        "leases",
        "problems",
        "calls",
        "approvals",
    )
    for name in (*own, "approvals"):
        async with asker.session.get(f"{asker.url}{name}.js") as answer:
            text = await answer.text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "eval(",
            "http://",
            "https://",
        ):
            assert word not in text, f"{name}.js: {word}"


async def test_a_path_outside_of_the_page_is_not_found(console: Open) -> None:
    _plane, asker = await console(None)
    status, answer = await asker.get("../server.py")
    assert (status, "error" in answer) == (404, True)


async def test_without_the_key_requests_are_rejected(console: Open) -> None:
    _plane, asker = await console(_KEY)
    for path in (
        "api/session",
        "api/overview",
        "api/leases",
        "api/events",
        "api/live",
        "api/calls",
    ):
        status, answer = await asker.get(path)
        assert status == 401, path
        assert _KEY not in json.dumps(answer)
    status, _ = await asker.post("api/revoke", {"lease": "x"})
    assert status == 401


async def test_the_key_opens_a_session_that_scripts_cannot_read(console: Open) -> None:
    _plane, asker = await console(_KEY)
    status, _ = await asker.post("api/session", {"key": "wrong"})
    assert status == 403
    sent = {"X-Leaseway-Console": "1"}
    async with asker.session.post(
        asker.url + "api/session", json={"key": _KEY}, headers=sent
    ) as answer:
        cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert _KEY not in cookie
    assert (await asker.get("api/overview"))[0] == 200


async def test_a_session_that_was_signed_out_of_has_ended(console: Open) -> None:
    _plane, asker = await console(_KEY)
    assert (await asker.post("api/session", {"key": _KEY}))[0] == 200
    (cookie,) = asker.session.cookie_jar
    url = asker.url + "api/session"
    async with asker.session.delete(url) as foreign:  # another site's page may not
        assert foreign.status == 403
    assert (await asker.get("api/overview"))[0] == 200
    async with asker.session.delete(url, headers={"X-Leaseway-Console": "1"}) as answer:
        assert answer.status == 200
    assert not list(asker.session.cookie_jar)
    asker.session.cookie_jar.update_cookies({cookie.key: cookie.value}, URL(asker.url))
    assert (await asker.get("api/overview"))[0] == 401  # also for who has kept the cookie


async def test_a_browser_is_signed_in_to_several_consoles_of_one_host(console: Open) -> None:
    _plane, one = await console(_KEY)
    _plane, other = await console(_KEY)
    other = Asker(other.url, one.session)  # which sends its cookies to both ports
    for asker in (one, other):
        assert (await asker.post("api/session", {"key": _KEY}))[0] == 200
    for asker in (one, other):
        assert (await asker.get("api/overview"))[0] == 200


async def test_a_program_sends_the_key_as_a_bearer_token(console: Open) -> None:
    _plane, asker = await console(_KEY)
    bearer = {"Authorization": f"Bearer {_KEY}"}
    assert (await asker.get("api/overview", headers=bearer))[0] == 200
    assert (await asker.get("api/overview", headers={"Authorization": "Bearer x"}))[0] == 401


async def test_guessing_the_key_is_stopped(console: Open) -> None:
    _plane, asker = await console(_KEY)
    statuses = [(await asker.post("api/session", {"key": f"no-{n}"}))[0] for n in range(12)]
    assert statuses == [403] * 10 + [429] * 2
    assert (await asker.post("api/session", {"key": _KEY}))[0] == 429


async def test_guessing_the_key_does_not_block_other_addresses(console: Open) -> None:
    _plane, asker = await console(_KEY)
    for n in range(11):
        await asker.post("api/session", {"key": f"no-{n}"})
    elsewhere = aiohttp.TCPConnector(local_addr=("127.0.0.2", 0))
    async with aiohttp.ClientSession(connector=elsewhere) as session:
        other = Asker(asker.url, session)
        assert (await other.post("api/session", {"key": _KEY}))[0] == 200


async def test_requests_of_other_sites_and_host_names_are_rejected(console: Open) -> None:
    plane, asker = await console(None)
    with plane.transition() as (state, now):
        state.handle_worker_joined(hello("w1"), now)
    async with asker.session.post(asker.url + "api/drain", json={"worker": "w1"}) as answer:
        assert answer.status == 403
    crossed = {"Sec-Fetch-Site": "cross-site"}
    assert (await asker.post("api/drain", {"worker": "w1"}, **crossed))[0] == 403
    status, _ = await asker.get("api/overview", headers={"Host": "evil.example:7656"})
    assert status == 403
    assert not plane.state.workers["w1"].draining


def test_a_public_address_requires_a_key() -> None:
    with pytest.raises(ValueError, match="LEASEWAY_KEY"):
        ConsoleListener(Endpoint("0.0.0.0", 0), None)


async def waiting(plane: Plane) -> str:
    """Request an approval; return its id."""
    question = replace(PAY, arguments='{"amount":5}')
    asked = await plane.approvals.ask(question, use=False)
    assert asked.record is not None
    return asked.record.id


async def test_a_call_that_waits_for_a_person_is_shown_and_decided_once(console: Open) -> None:
    plane, asker = await console(None)
    approval = await waiting(plane)
    _, shown = await asker.get("api/approvals")
    assert shown["approver"] is True
    assert [(item["id"], item["state"]) for item in shown["items"]] == [(approval, "waiting")]
    assert shown["items"][0]["arguments"] == '{"amount":5}'
    body = {"approval": approval, "approve": True}
    assert (await asker.post("api/decide", {"approval": approval, "approve": 1}))[0] == 400
    no_text = {"approval": "\ud800", "approve": True}
    assert (await asker.post("api/decide", no_text))[0] == 400
    assert (await asker.post("api/decide", body))[0] == 200
    status, answer = await asker.post("api/decide", {**body, "approve": False})
    assert (status, "already approved" in answer["error"]) == (409, True)
    assert [each_approval.state for each_approval in plane.approvals.listed("")] == ["approved"]


async def test_deciding_an_approval_requires_the_role_approver() -> None:
    plane = Plane(epoch=1)

    async def admit(_authorization: str | None) -> Principal:
        return Principal("key 2", frozenset({Role.OPERATOR}))

    listener = ConsoleListener(Endpoint("127.0.0.1", 0), AdmittedBy(admit))
    with closing(listener):
        async with serve_console(listener, plane), aiohttp.ClientSession() as session:
            asker = Asker(listener.url, session)
            approval = await waiting(plane)
            bearer = {"Authorization": "Bearer x"}
            _, shown = await asker.get("api/approvals", headers=bearer)
            assert (len(shown["items"]), shown["approver"]) == (1, False)
            body = {"approval": approval, "approve": True}
            assert (await asker.post("api/decide", body, **bearer))[0] == 403
    assert [each_approval.state for each_approval in plane.approvals.listed("")] == ["waiting"]


class Routed(ConsoleListener):
    """Records the paths of the application."""

    routes: ClassVar[list[tuple[str, str]]] = []

    @asynccontextmanager
    async def serve(self, app: web.Application, **limits: float) -> AsyncIterator[None]:
        """Serve an application."""
        type(self).routes = [
            (route.method, route.resource.canonical)
            for route in app.router.routes()
            if route.resource is not None and route.method != "HEAD"
        ]
        async with super().serve(app, **limits):
            yield


async def test_each_path_requires_a_credential(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    credentials = {"nobody": "", "wrong": "lwk_aaaaaaaa_" + "x" * 43}
    wanted: dict[str, tuple[Role, str | None, float | None]] = {
        "expired": (Role.OPERATOR, None, 1.0),
        "revoked": (Role.OPERATOR, None, None),
        "caller": (Role.CALLER, "acme", None),
        "approver": (Role.APPROVER, "acme", None),
        "worker": (Role.PLANE, None, None),
        "viewer": (Role.VIEWER, None, None),
        "operator": (Role.OPERATOR, None, None),
    }
    for name, (role, tenant, ends) in wanted.items():
        credentials[name], record = make_key(
            roles=[role], tenant=tenant, agent=None, now=0.0, expires_at=ends
        )
        add_key(path, record)
        if name == "revoked":
            revoke_key(path, record.id, 0.0)
    admit = authenticator_for(None, keys=path).for_role(*SEES_ALL)
    listener = Routed(Endpoint("127.0.0.1", 0), admit)
    with closing(listener):
        async with serve_console(listener, Plane(epoch=1)), aiohttp.ClientSession() as session:
            sign_in = ("POST", "/api/session")
            sign_out = ("DELETE", "/api/session")
            asked = [route for route in Routed.routes if route[1].startswith("/api/")]
            assert {("GET", "/api/calls"), ("POST", "/api/drain"), sign_in, sign_out} <= set(asked)
            for name, credential in credentials.items():
                sent = {"X-Leaseway-Console": "1"}
                sent |= {"Authorization": f"Bearer {credential}"} if credential else {}
                told = set()
                for method, place in asked:
                    if (method, place) in (sign_in, sign_out):
                        continue
                    url = listener.url.rstrip("/") + place
                    async with session.request(method, url, headers=sent) as answer:
                        if name in ("nobody", "wrong", "expired", "revoked"):
                            assert answer.status == 401, (name, place)
                            told.add(await answer.text())
                        elif name in ("caller", "approver", "worker"):
                            assert answer.status == 403, (name, place)
                            told.add(await answer.text())
                        elif method == "GET":
                            assert answer.status not in (401, 403), (name, place)
                        elif name == "viewer":
                            assert answer.status == 403, (name, place)
                        else:  # it neither calls nor agrees; all else lacks its body
                            lacks = place in ("/api/decide", "/api/try")
                            assert answer.status == (403 if lacks else 400), place
                assert len(told) <= 1  # the same whatever was asked for


async def test_a_viewer_sees_everything_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, record = make_key(roles=[Role.VIEWER], tenant=None, agent=None, now=0.0)
    add_key(path, record)
    plane = Plane(epoch=1)
    with plane.transition() as (state, now):
        state.handle_worker_joined(hello("w1"), now)
    approval = await waiting(plane)
    admit = authenticator_for(None, keys=path).for_role(*SEES_ALL)
    listener = ConsoleListener(Endpoint("127.0.0.1", 0), admit)
    jar = aiohttp.CookieJar(unsafe=True)
    with closing(listener):
        async with (
            serve_console(listener, plane),
            aiohttp.ClientSession(cookie_jar=jar) as session,
        ):
            asker = Asker(listener.url, session)
            rights = {"operator": False, "caller": False, "signed_in": True}
            assert await asker.post("api/session", {"key": key}) == (200, rights)
            assert await asker.get("api/session") == (200, rights)
            assert (await asker.get("api/logs?id=nothing"))[0] == 409
            for page in ("overview", "servers", "tools", "leases", "workers", "problems", "calls"):
                assert (await asker.get(f"api/{page}"))[0] == 200
            for page, body in {
                "drain": {"worker": "w1"},
                "revoke": {"lease": "one"},
                "try": {"server": "kit", "tool": "echo", "tenant": ""},
                "decide": {"approval": approval, "approve": True},
            }.items():
                assert (await asker.post(f"api/{page}", body))[0] == 403
    assert not plane.state.workers["w1"].draining
    assert [each_approval.state for each_approval in plane.approvals.listed("")] == ["waiting"]


async def test_a_drain_is_executed_and_recorded(console: Open) -> None:
    plane, asker = await console(None)
    with plane.transition() as (state, now):
        state.handle_worker_joined(hello("w1"), now)
    status, _ = await asker.post("api/drain", {"worker": "w1"})
    assert status == 200
    assert plane.state.workers["w1"].draining
    _, history = await asker.get("api/events?kind=operator")
    assert "w1" in history["items"][0]["message"]
    status, answer = await asker.post("api/drain", {"worker": "nobody"})
    assert (status, "No worker 'nobody' is connected" in answer["error"]) == (409, True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("api/revoke", []),
        ("api/revoke", {"lease": 7}),
        ("api/revoke", {"lease": "x" * 1_000}),
        ("api/try", {"server": "a", "tool": "b", "arguments": "text"}),
        ("api/session", {"key": ["k"]}),
    ],
)
async def test_a_wrong_body_is_refused_with_a_sentence(
    console: Open, path: str, body: object
) -> None:
    _plane, asker = await console(None)
    status, answer = await asker.post(path, body)
    assert status == 400
    assert answer["error"].endswith(".")


async def test_a_wrong_query_is_refused_with_a_sentence(console: Open) -> None:
    _plane, asker = await console(None)
    assert (await asker.get("api/leases?offset=-1"))[0] == 400
    assert (await asker.get("api/server?id=nothing"))[0] == 404
    assert (await asker.get("api/tool?name=nothing"))[0] == 404


async def test_everything_is_empty_before_there_is_anything(console: Open) -> None:
    _plane, asker = await console(None)
    for path in ("servers", "tools", "leases", "workers", "problems", "events", "calls"):
        status, answer = await asker.get(f"api/{path}")
        assert (status, answer["items"]) == (200, []), path
    _, overview = await asker.get("api/overview")
    assert overview["servers"]["total"] == 0
    assert overview["last_reload"] is None


async def test_failed_servers_come_first_and_a_search_finds_one_of_many(console: Open) -> None:
    plane, asker = await console(None)
    specs = {VariantKey(f"s{n:03}"): spec(f"s{n:03}") for n in range(500)}
    with plane.transition() as (state, now):
        state.apply_config(specs, frozenset({"s444"}), [], now)
    _, page = await asker.get("api/servers?limit=100")
    assert (page["total"], len(page["items"])) == (500, 100)
    assert page["items"][0]["id"] == "s444"
    _, found = await asker.get("api/servers?q=S07")
    assert [row["id"] for row in found["items"]] == [f"s07{n}" for n in range(10)]


async def test_values_of_the_configuration_are_not_shown(console: Open) -> None:
    plane, asker = await console(None)
    secret = changed(spec("a"), args=("--token", "s3cr3t-value"))
    with plane.transition() as (state, now):
        state.apply_config({secret.key: secret}, frozenset(), [], now)
    plane.events.record_reload({secret.key: secret}, "mcp.yaml", [], 1.0)
    for path in ("servers", "server?id=a", "overview", "events"):
        _, answer = await asker.get(f"api/{path}")
        assert "s3cr3t-value" not in json.dumps(answer), path


async def test_a_page_gets_events_and_changes_live(console: Open) -> None:
    plane, asker = await console(None)
    async with asyncio.timeout(BOUND), asker.session.get(asker.url + "api/live") as stream:
        first = await _messages(stream, {"state", "events"})
        assert first["state"]["overview"]["workers"]["connected"] == 0
        with plane.transition() as (state, now):
            state.handle_worker_joined(hello("w1"), now)
        plane.events.record(EventRecord("operator", "looked", "Somebody looked.", 1.0))
        while True:
            heard = await _messages(stream, {"events"})
            if any(event["kind"] == "operator" for event in heard["events"]):
                break
        while True:
            heard = await _messages(stream, {"state"})
            if heard["state"]["overview"]["workers"]["connected"] == 1:
                break


async def test_an_open_stream_ends_when_its_credential_is_revoked(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key, record = make_key(roles=[Role.VIEWER], tenant=None, agent=None, now=0.0)
    add_key(path, record)
    authenticator = authenticator_for(None, keys=path)
    listener = ConsoleListener(Endpoint("127.0.0.1", 0), authenticator.for_role(*SEES_ALL))
    plane = Plane(epoch=1)
    sent = {"Authorization": f"Bearer {key}"}
    with closing(listener):
        async with (
            serve_console(listener, plane),
            aiohttp.ClientSession() as session,
            asyncio.timeout(BOUND),
            session.get(listener.url + "api/live", headers=sent) as stream,
        ):
            await _messages(stream, {"state", "traffic"})
            revoke_key(path, record.id, 0.0)
            await authenticator.refresh()  # which it does each second
            while await stream.content.readline():
                pass


async def test_an_open_stream_ends_with_the_session_that_opened_it() -> None:
    admit = authenticator_for(_KEY).for_role(*SEES_ALL)
    listener = ConsoleListener(Endpoint("127.0.0.1", 0), admit)
    now = 0.0
    jar = aiohttp.CookieJar(unsafe=True)
    with closing(listener):
        async with (
            serve_console(listener, Plane(epoch=1), clock=lambda: now),
            aiohttp.ClientSession(cookie_jar=jar) as session,
            asyncio.timeout(BOUND),
        ):
            assert (await Asker(listener.url, session).post("api/session", {"key": _KEY}))[0] == 200
            async with session.get(listener.url + "api/live") as stream:
                await _messages(stream, {"state", "traffic"})
                now = 12 * 3600.0
                while await stream.content.readline():
                    pass


async def test_a_page_hears_of_a_console_that_has_nothing_to_tell(
    console: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_HEARTBEAT", 0.01)
    _plane, asker = await console(None)
    async with asyncio.timeout(BOUND), asker.session.get(asker.url + "api/live") as stream:
        assert (await _messages(stream, {"heartbeat"}))["heartbeat"] == {}


async def test_equal_requests_of_many_pages_query_the_workers_once() -> None:
    asked = 0
    now = 0.0
    gate = asyncio.Event()

    async def ask() -> int:
        nonlocal asked
        asked += 1
        await gate.wait()
        return asked

    cache = ResponseCache(lambda: now)
    async with asyncio.timeout(BOUND):
        pages = [asyncio.create_task(cache.get("calls", ask)) for _ in range(50)]
        other = asyncio.create_task(cache.get("leases", ask))
        while asked < 2:
            await asyncio.sleep(0)
        pages[0].cancel()  # a page that is closed takes nothing from the others
        gate.set()
        assert set(await asyncio.gather(*pages[1:])) == {"2"}
        assert await other == "2"
        assert await cache.get("calls", ask) == "2"
        now = 1.5
        assert await cache.get("calls", ask) == "3"


async def test_unchanged_state_has_the_same_revisions(console: Open) -> None:
    plane, asker = await console(None)
    specs = {VariantKey("a"): spec("a")}
    with plane.transition() as (state, now):
        state.apply_config(specs, frozenset(), [], now)
    rows = ServerRows(plane)
    first = rows.all()
    with plane.transition():
        pass
    assert rows.all() is first
    revision = rows.revision
    with plane.transition() as (state, now):
        state.apply_config({}, frozenset(), [], now)
    assert rows.all() == []
    assert rows.revision == revision + 1
    assert (await asker.get("api/servers"))[1]["items"] == []


async def test_problems_have_an_entry_in_the_runbook(console: Open) -> None:
    plane, asker = await console(None)
    problem = Problem("server", "COMMAND_NOT_FOUND", "There is no such command.", "a")
    plane.state.problems.report(problem, 1.0)
    _, listed = await asker.get("api/problems?q=command")
    _, runbook = await asker.get("api/runbook")
    assert runbook[listed["items"][0]["reason"]]["do"]


async def _messages(stream: Any, wanted: set[str]) -> dict[str, Any]:
    """Read messages until one of each kind has arrived."""
    found: dict[str, Any] = {}
    kind = ""
    while not wanted <= set(found):
        line = (await stream.content.readline()).decode().rstrip("\n")
        assert line or not stream.content.at_eof(), "the stream has ended"
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            found[kind] = json.loads(value)
    return found


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 50_000, b"9" * 5_000])
async def test_a_body_that_is_no_usable_json_is_a_bad_request(console: Open, body: bytes) -> None:
    _, ask = await console(None)
    headers = {"X-Leaseway-Console": "1"}
    async with ask.session.post(ask.url + "api/session", data=body, headers=headers) as answer:
        assert answer.status in (400, 413)
    async with ask.session.post(ask.url + "api/try", data=body, headers=headers) as answer:
        assert answer.status == 400
        assert "JSON" in (await answer.json())["error"]


async def test_idle_connections_do_not_lock_the_console(console: Open) -> None:
    _, ask = await console(None)
    host, _, port = ask.url.removeprefix("http://").rstrip("/").rpartition(":")
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(300)]
    try:
        assert (await ask.get("api/session"))[0] == 200
    finally:
        for _, writer in idle:
            writer.close()


async def test_the_console_accepts_the_longest_token(console: Open) -> None:
    _, ask = await console("k" * 40)
    headers = {"Authorization": "Bearer " + "x" * MAX_TOKEN}
    assert (await ask.get("api/session", headers=headers))[0] == 401

"""The console in a real browser: empty, with many servers and leases, with hostile text."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.console.admitting import AdmittedBy
from tests.console.browser import Page, browser
from tests.control_plane.core.builders import hello, lease, spec
from tests.e2e.system import System, python_server
from tests.ports import free_port

from leaseway.control_plane.console import live
from leaseway.control_plane.console.server import ConsoleListener, serve_console
from leaseway.control_plane.core.approvals import ApprovalRequest
from leaseway.control_plane.core.problems import Problem
from leaseway.control_plane.core.workers.records import WorkerReport
from leaseway.control_plane.operators.inspector import Inspector
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.stored_approvals import StoredApprovals
from leaseway.identity.principal import Principal, Role
from leaseway.sdk import AsyncClient
from leaseway.spec.model import VariantKey
from leaseway.v1 import admin_pb2
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.events import EventRecord

_VIEWS = ("", "servers", "tools", "leases", "workers", "calls", "approvals", "problems", "history")
_HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
_ROOT = Path(__file__).parents[2]
_REDRAW_LIMIT = 200
"""Milliseconds of processor time of the page and the server; how busy others are changes little."""
_MAX_TRIES = 10


@pytest.fixture(scope="module")
async def module_page(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    """Run one browser for all tests of the module."""
    async with browser(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
async def page(module_page: Page) -> Page:
    """Return the browser's page, empty and without complaints."""
    await module_page.open("about:blank")
    module_page.complaints.clear()
    return module_page


@asynccontextmanager
async def console_of(
    plane: Plane, port: int = 0, admit: AdmittedBy | None = None
) -> AsyncIterator[str]:
    """Serve the console of a plane in process; yield its URL."""
    listener = ConsoleListener(Endpoint("127.0.0.1", port), admit)
    with closing(listener):
        async with serve_console(listener, plane):
            yield listener.url


@pytest.fixture(scope="module")
async def filled() -> AsyncIterator[str]:
    """Serve the console of a plane with many servers, leases and problems; yield its URL."""
    plane = Plane(epoch=1)
    _fill(plane)
    async with console_of(plane) as url:
        yield url


def _join(plane: Plane, name: str) -> None:
    """Add a worker with 500 leases."""
    joined = replace(hello(name), capacity=1_000)
    held = tuple(
        lease(f"{name}-{n}", name, f"session-{name}-{n}", f"server-{n:03}") for n in range(500)
    )
    report = WorkerReport(gained=held)
    with plane.transition() as (state, now):
        state.handle_worker_joined(joined, now)
    with plane.transition() as (state, now):
        state.handle_report(name, report, now)


def _fill(plane: Plane) -> None:
    """Add 500 servers, 5,000 leases, problems and events to a plane."""
    specs = {VariantKey(f"server-{n:03}"): spec(f"server-{n:03}") for n in range(500)}
    with plane.transition() as (state, now):
        state.apply_config(specs, frozenset(), [], now)
    plane.events.record_reload(specs, "mcp.yaml", [], plane.clock().unix)
    for number in range(10):
        _join(plane, f"worker-{number}")
    for number in range(300):
        problem = Problem("server", "START_FAILED", "It did not start.", f"server-{number:03}")
        plane.state.problems.report(problem, plane.clock().unix)
        plane.events.record(
            EventRecord("operator", "looked", f"Look {number}.", plane.clock().unix)
        )


async def _open_view(page: Page, url: str, view: str) -> None:
    await page.run(f"location.href = {json.dumps(f'{url}#/{view}')}")
    await page.until("!!document.querySelector('main h1')")


async def test_every_view_of_an_empty_system_says_that_it_is_empty(page: Page) -> None:
    async with console_of(Plane(epoch=1)) as url:
        await _check_empty_views(page, url)


async def _check_empty_views(page: Page, url: str) -> None:
    await page.open(url)
    await page.until("document.body.innerText.includes('No worker is connected')")
    texts = {
        "servers": "No server is configured",
        "tools": "No tool can be called yet",
        "leases": "No lease is held",
        "workers": "No worker has joined",
        "calls": "The workers have recorded no such call",
        "approvals": "No call waits for approval",
        "problems": "No problem is open",
        "history": "There are no events yet",
    }
    for view, words in texts.items():
        await _open_view(page, url, view)
        await page.until(f"document.body.innerText.includes({json.dumps(words)})")
    assert page.complaints == []


async def test_a_view_that_is_gone_to_gets_the_focus_whatever_its_address_is(page: Page) -> None:
    async with console_of(Plane(epoch=1)) as url:
        await page.open(f"{url}#/server/%")  # written by hand
        await page.until("document.querySelector('main h1')?.innerText === '%'")
        for view, title in (
            ("toString", "Action needed"),
            ("workers", "Workers"),
            ("calls/recent/%E0%A4", "Calls"),
        ):
            await page.run(f"location.hash = '#/{view}'")
            await page.until(
                f"document.activeElement.querySelector(':scope > h1')?.innerText === '{title}'"
            )
        missing = [words for words in page.complaints if "404" not in words]
        assert missing == []


async def test_many_servers_and_leases_are_drawn_a_page_at_a_time(page: Page, filled: str) -> None:
    url = filled
    await page.open(url)
    await page.until("document.body.innerText.includes('5,000')")
    for view, whole in (("servers", "of 500"), ("leases", "of 5,000")):
        await _open_view(page, url, view)
        await page.until(f"document.body.innerText.includes({json.dumps(whole)})")
        assert await page.run("document.querySelectorAll('tbody tr').length") == 100
        took: list[float] = []
        while not took or (min(took) >= _REDRAW_LIMIT and len(took) < _MAX_TRIES):
            took.append(await _turned(page, "next"))
            await _turned(page, "back")
        assert min(took) < _REDRAW_LIMIT, f"{view}: redrawn in {took} ms"
    await page.run(_type("session-worker-7-123"))
    await page.until("document.querySelectorAll('tbody tr').length === 1")
    await _open_view(page, url, "problems")
    await page.until("document.body.innerText.includes('300 open')")
    assert page.complaints == []


async def _turned(page: Page, button: str) -> float:
    """Turn to the next page of a table or back; return the processor time in milliseconds."""
    before = await page.processor_time() + time.process_time()
    await page.run(f"""(async () => {{
      const cell = () => document.querySelector('tbody td').innerText;
      const [back, next] = document.querySelectorAll('.pager button');
      const shown = cell();
      {button}.click();
      while (cell() === shown) await new Promise(requestAnimationFrame);
    }})()""")
    return 1000 * (await page.processor_time() + time.process_time() - before)


def _type(text: str, where: str = "input[type=search]") -> str:
    return f"""(() => {{
      const field = document.querySelector({json.dumps(where)});
      field.value = {json.dumps(text)};
      field.dispatchEvent(new Event('input', {{ bubbles: true }}));
    }})()"""


@pytest.mark.parametrize("width", [380, 1600])
async def test_no_view_is_wider_than_the_page(page: Page, filled: str, width: int) -> None:
    await page.open(filled, width=width)
    for view in _VIEWS:
        await _open_view(page, filled, view)
        wide = await page.run("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, view


def _axe() -> str:
    folder = Path(os.environ.get("LEASEWAY_NPM_SERVERS") or _ROOT / ".build" / "npm")
    script = folder / "node_modules" / "axe-core" / "axe.min.js"
    if not script.is_file():
        if "npm" in os.environ.get("LEASEWAY_REQUIRE", "").split(","):
            pytest.fail("LEASEWAY_REQUIRE names npm, and axe-core is not installed")
        pytest.skip("axe-core is not installed: make npm-servers")
    return script.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("dark", "rules"),
    [(False, ""), (True, "runOnly: ['color-contrast'],")],  # dark is only other colours
    ids=["light", "dark"],
)
async def test_axe_finds_no_serious_violation_in_any_view(
    page: Page, filled: str, dark: bool, rules: str
) -> None:
    script = _axe()
    await page.open(filled, dark=dark)
    await page.until("!!document.querySelector('main h1')")
    await page.run(f"{script}; true")  # all views are in one document
    found: list[str] = []
    for view in _VIEWS:
        await _open_view(page, filled, view)
        answer: dict[str, Any] = await page.run(
            f"axe.run(document, {{ {rules} resultTypes: ['violations'] }}).then((found) => ({{"
            " violations: found.violations.map(({ id, impact, nodes }) =>"
            " ({ id, impact, nodes: nodes.slice(0, 3).map((node) => node.html) })) }))"
        )
        found += [
            f"{view or 'overview'}: {violation}"
            for violation in answer["violations"]
            if violation["impact"] in ("serious", "critical")
        ]
    assert found == []


async def test_hostile_text_of_a_server_is_shown_as_text_in_every_view(
    page: Page, tmp_path: Path
) -> None:
    servers = {"hostile": python_server("planted.py", "hostile", **{"truely-stateless": True})}
    async with System(tmp_path, servers, console=True) as system:
        async with AsyncClient(system.address) as client:
            await client.call_tool("inject", {}, timeout=60)
        await page.open(system.console)
        for view in (*_VIEWS, "server/hostile/", "tool/inject/"):
            await _open_view(page, system.console, view)
            await _check_harmless(page)
        await _open_view(page, system.console, "tool/inject/")
        await page.until(f"document.body.innerText.includes({json.dumps(_HOSTILE)})")
        await page.until("!!document.querySelector('form.try button')")
        await page.run("document.querySelector('form.try button').click()")
        await page.until("document.body.innerText.includes('Done in')")
        await _check_harmless(page)
        await _open_view(page, system.console, "server/hostile/")
        await page.until(
            "[...document.querySelectorAll('button')].some((b) => b.innerText.includes('stderr'))"
        )
        await page.run(
            "[...document.querySelectorAll('button')]"
            ".find((b) => b.innerText.includes('stderr')).click()"
        )
        await page.until("document.querySelector('pre.log')?.innerText.includes('onerror')")
        await _check_harmless(page)
        assert page.complaints == []


async def test_a_tool_is_called_with_the_values_of_its_form(page: Page, tmp_path: Path) -> None:
    servers = {"form": python_server("planted.py", "form", **{"truely-stateless": True})}
    async with System(tmp_path, servers, console=True) as system:
        await page.open(system.console)
        await page.until("document.body.innerText.includes('Everything works')")
        await _open_view(page, system.console, "tool/fill/")
        await page.until("document.querySelectorAll('form.try label').length === 4")
        for count, parts, refusal in (  # each says something else than the one before
            ("", '[{"id": 9007199254740993}]', "parts has more digits"),
            ("", "no JSON", "parts is not JSON."),
            ("", "[1e400]", "parts has more digits"),
            ("9007199254740993", "", "count has more digits"),
        ):
            await page.run(_fill_form(["ann", "", count, parts]))
            await page.run("document.querySelector('form.try button').click()")
            shown = "document.querySelector('.try .failure')?.innerText"
            await page.until(f"{shown}?.startsWith({json.dumps(refusal)})")
        await page.run(_fill_form(["ann", "may be null", "3", '["a 9007199254740993"]']))
        await page.run("document.querySelector('form.try button').click()")
        await page.until("document.body.innerText.includes('Done in')")
        sent = await page.run("document.querySelector('form.try pre').innerText")
        assert json.loads(sent) == {
            "name": "ann",
            "note": "may be null",
            "count": 3,
            "parts": ["a 9007199254740993"],
        }
        assert page.complaints == []


async def test_a_call_that_is_looked_at_stays_in_the_list_of_a_busy_system(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count(1)

    async def newest(*_asked: object) -> admin_pb2.ListCallsResponse:
        name = f"t{next(numbers)}"
        call = admin_pb2.CallRecord(id=name, server_id="a", tool=name)
        call.started_at.FromSeconds(1_800_000_000)
        call.duration.FromMilliseconds(5)
        return admin_pb2.ListCallsResponse(calls=[call])

    monkeypatch.setattr(Inspector, "calls", newest)
    monkeypatch.setattr(live, "_CACHE_SECONDS", 0.0)
    async with console_of(Plane(epoch=1)) as url:
        await page.open(url)
        await page.until("document.body.innerText.includes('No worker is connected')")
        await _open_view(page, url, "calls")
        await page.until("document.querySelector('.calls button')?.innerText.includes('a:t2')")
        await page.run("document.querySelector('.calls button').click()")
        await page.until("!!document.querySelector('.waterfall')")
        await page.run(  # after what the page itself has asked for
            "fetch('api/calls').then((answer) => answer.json())"
            ".then(() => new Promise((done) => requestAnimationFrame(() => done(true))))"
        )
        assert await page.run("!!document.querySelector('.waterfall')")


async def test_the_buttons_of_a_row_with_long_texts_stay_on_one_line(page: Page) -> None:
    plane = Plane(epoch=1)
    asked = ApprovalRequest(
        tenant="acme",
        agent="bot",
        session="chat-1",
        of_session=False,
        server_id="bank",
        tool="pay",
        digest="d",
        arguments=json.dumps({"to": "x" * 1_000}),
        asked_by="key 'ops'",
    )
    await plane.approvals.ask(asked, use=False)
    async with console_of(plane) as url:
        await page.open(url)
        await page.until("document.body.innerText.includes('No worker is connected')")
        await _open_view(page, url, "approvals")
        await page.until("document.querySelectorAll('td button').length === 2")
        assert await page.run("document.querySelector('td button').offsetHeight") < 50


async def test_approvals_are_read_again_although_no_event_tells_that_the_store_works_again(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_approvals: StoredApprovals) -> None:
        raise Fault(Reason.STORE_UNAVAILABLE, "The store is down.")

    async with console_of(Plane(epoch=1)) as url:
        await page.open(url)
        await page.until("document.body.innerText.includes('No worker is connected')")
        with monkeypatch.context() as down:
            down.setattr(StoredApprovals, "refresh", fail)
            await _open_view(page, url, "approvals")
            await page.until("document.body.innerText.includes('The store is down.')")
        await page.until("document.body.innerText.includes('No call waits for approval')")
        assert "The store is down." not in await page.text()


def _fill_form(texts: list[str]) -> str:
    """Return a script that fills all fields at once, like a browser's autofill."""
    return f"""(() => {{
      const texts = {json.dumps(texts)};
      document.querySelectorAll('form.try :is(input, textarea)').forEach((field, at) => {{
        field.value = texts[at];
        field.dispatchEvent(new Event('input', {{ bubbles: true }}));
      }});
    }})()"""


async def _check_harmless(page: Page) -> None:
    title, images, scripts = await page.run(
        "[document.title, [...document.images].map((one) => one.getAttribute('src')),"
        " document.querySelectorAll('main script').length]"
    )
    assert title == "Leaseway"
    assert set(images) <= {"icon.svg"}
    assert scripts == 0


async def test_the_page_reconnects_to_a_restarted_control_plane_without_a_reload(
    page: Page, tmp_path: Path
) -> None:
    servers = {"echo": python_server("planted.py", "echo", **{"truely-stateless": True})}
    async with System(tmp_path, servers, console=True) as system:
        await page.open(system.console)
        await page.until("document.body.innerText.includes('Everything works')")
        await page.run("window.stayed = true")
        assert system.control_plane is not None
        await system.control_plane.end()
        await page.until("document.body.innerText.includes('disconnected; data from')")
        await system.start_control_plane()
        await page.until("document.querySelector('.pulse').innerText.trim() === 'live'")
        await page.until("document.body.innerText.includes('Everything works')")
        assert await page.run("window.stayed")


async def test_a_list_is_read_again_from_another_control_plane_that_has_the_same_revision(
    page: Page,
) -> None:
    port = free_port()
    first, second = Plane(epoch=1), Plane(epoch=2)
    for plane, name in ((first, "old"), (second, "new")):
        problem = Problem("server", "START_FAILED", f"The {name} one did not start.", name)
        plane.state.problems.report(problem, plane.clock().unix)
    async with console_of(first, port) as url:
        await page.open(url)
        await page.until("document.body.innerText.includes('No worker is connected')")
        await _open_view(page, url, "problems")
        await page.until("document.body.innerText.includes('The old one')")
    async with console_of(second, port):
        await page.until("document.body.innerText.includes('The new one')")


async def test_a_standby_says_that_another_control_plane_leads(page: Page) -> None:
    plane = Plane(epoch=1, follows=True)
    async with console_of(plane) as url:
        await page.open(url)
        await page.until("document.querySelector('h1')?.innerText === 'Standby'")
        plane.lead(2)
        await page.until("document.querySelector('h1').innerText === 'Action needed'")


async def test_the_page_tells_that_a_control_plane_which_hangs_is_silent(
    page: Page, tmp_path: Path
) -> None:
    async with System(tmp_path, {}, console=True) as system:
        await page.open(system.console)
        await page.until("document.querySelector('.pulse').innerText.trim() === 'live'")
        assert system.control_plane is not None
        process = system.control_plane.process
        process.send_signal(signal.SIGSTOP)
        try:
            await page.run("(() => { const now = Date.now; Date.now = () => now() + 60000; })()")
            await page.until("document.body.innerText.includes('disconnected; data from')")
        finally:
            process.send_signal(signal.SIGCONT)
        await page.until("document.querySelector('.pulse').innerText.trim() === 'live'")


async def test_a_viewer_gets_no_button_that_changes_anything(page: Page) -> None:
    plane = Plane(epoch=1)
    _fill(plane)
    roles = frozenset({Role.VIEWER})

    async def admit(authorization: str | None) -> Principal:
        if authorization is None:
            raise Fault(Reason.UNAUTHENTICATED, "Sign in.")
        return Principal("key 1", roles)

    listener = ConsoleListener(Endpoint("127.0.0.1", 0), AdmittedBy(admit))
    with closing(listener):
        async with serve_console(listener, plane):
            await page.open(listener.url)
            await page.until("!!document.querySelector('input[type=password]')")
            await page.run(_type("a key", "input[type=password]"))
            await page.until(
                "(document.querySelector('.login button')?.click(),"
                " document.body.innerText.includes('view only'))"
            )
            for view in ("leases", "workers"):
                await _open_view(page, listener.url, view)
                await page.until("!!document.querySelector('tbody tr')")
                assert await page.run("document.querySelectorAll('.danger').length") == 0, view
            roles = frozenset({Role.OPERATOR})
            await page.open(f"{listener.url}#/workers")
            await page.run("location.reload()")
            await page.until("document.querySelectorAll('.danger').length === 10")
            roles = frozenset({Role.VIEWER})  # the credential loses its role
            await page.run("document.querySelector('.danger').click()")
            await page.until("!!document.querySelector('.sure .danger')")
            await page.run("document.querySelector('.sure .danger').click()")
            await page.until("document.body.innerText.includes('it lacks the role operator')")
            await page.until("document.activeElement.innerText === 'Drain'")  # to try it again
    assert not any(worker.draining for worker in plane.state.workers.values())


async def test_who_is_not_admitted_reads_why_and_signs_in_with_another_credential(
    page: Page,
) -> None:
    refused: list[Reason] = []

    async def admit(authorization: str | None) -> Principal:
        if authorization is None:
            raise Fault(Reason.UNAUTHENTICATED, "Sign in.")
        if refused:
            raise Fault(refused[0], "This needs the role viewer.")
        return Principal("key 1", frozenset({Role.VIEWER}))

    login = "document.querySelector('.login')?.innerText"
    async with console_of(Plane(epoch=1), admit=AdmittedBy(admit)) as url:
        await page.open(url)
        for reason, words in (
            (Reason.PERMISSION_DENIED, "needs the role viewer"),
            (Reason.UNAUTHENTICATED, "The session has ended"),
        ):
            await page.until(f"!!{login}")
            refused.clear()
            await page.run(_type("a key", "input[type=password]"))
            await page.until(
                "(document.querySelector('.login button')?.click(),"
                " document.querySelector('.pulse')?.innerText.trim() === 'live')"
            )
            refused.append(reason)
            await page.run("(() => { const now = Date.now; Date.now = () => now() + 60000; })()")
            await page.until(f"{login}?.includes({json.dumps(words)})")
        refused.clear()
        await page.run("location.reload()")
        await page.until("!!document.querySelector('header button')")
        await page.run("document.querySelector('header button').click()")
        await page.until(f"{login}?.includes('Credential')")
        await page.run("location.reload()")
        await page.until(f"{login}?.includes('Credential')")


async def test_the_page_asks_for_a_key_and_opens_with_it(page: Page, tmp_path: Path) -> None:
    key = "a-key-that-is-hard-to-guess"
    os.environ["LEASEWAY_KEY"] = key
    try:
        async with System(tmp_path, {}, environment={"LEASEWAY_KEY": key}, console=True) as system:
            await page.open(system.console)
            await page.until("!!document.querySelector('input[type=password]')")
            for tried, words in (("wrong", "not accepted"), (key, "No server is configured yet")):
                await page.run(
                    "(() => { const field = document.querySelector('input[type=password]');"
                    f" field.value = {json.dumps(tried)};"
                    " field.dispatchEvent(new Event('input', { bubbles: true })); })()"
                )
                await asyncio.sleep(0)
                await page.until(
                    "(document.querySelector('.login button')?.click(),"
                    f" document.body.innerText.includes({json.dumps(words)}))"
                )
            assert key not in await page.run("document.documentElement.outerHTML")
            assert await page.run("document.cookie") == ""
    finally:
        del os.environ["LEASEWAY_KEY"]

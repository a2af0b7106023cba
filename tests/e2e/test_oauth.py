"""Remote servers behind a real authorization server (npm oidc-provider): tokens and logins."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.data_plane.oauth.authority import (
    SECRET,
    Resource,
    answer_pages,
    browser,
    provider,
)
from tests.e2e.forking import fork_leaseway
from tests.e2e.logins import KEY, entry, is_answered, log_in, open_link, vault_of
from tests.e2e.system import System, eventually, python_server, running
from tests.vaults import QUICK_SCRYPT

from leaseway.sdk import (
    AsyncClient,
    AsyncSession,
    Client,
    LeaseRevoked,
    LoginRequired,
    UserRequired,
)
from leaseway.telemetry.trace_file import TraceCollector, otlp_environment
from leaseway.vault import file
from leaseway.vault.key import VaultPlace
from leaseway.vault.logins import LoginStore
from leaseway.wire.secrets.secret_names import secret_forms

pytestmark = pytest.mark.usefixtures("leak_guard")
ACCEPTED = {"action": "accept"}


async def test_500_concurrent_calls_on_each_of_two_workers_make_one_token_request(
    tmp_path: Path,
) -> None:
    credentials = {"client_id": "service", "client_secret": {"env": "WORD"}}
    async with provider() as authority, Resource() as resource:
        await resource.trust(authority)
        servers = {"whoami": entry(resource, {"client_credentials": credentials})}
        environment = {**vault_of(tmp_path), "WORD": SECRET}
        async with running(tmp_path, servers, workers=2, environment=environment) as (
            system,
            first,
        ):
            async with contextlib.AsyncExitStack() as stack:
                clients = [first]
                for _ in range(3):
                    client = AsyncClient(system.address, agent="test")
                    clients.append(await stack.enter_async_context(client))
                results = await asyncio.gather(
                    *(
                        client.call_tool("whoami", timeout=BOUND)
                        for client in clients
                        for _ in range(250)
                    )
                )
            assert {result.text for result in results} == {"service"}
            shown = system.logs() + repr(await first.problems()) + repr(await first.servers())
            assert SECRET not in shown
            assert "eyJ" not in shown
        assert resource.called == 1_000
        await eventually(lambda: authority.events)
        assert Counter(event["event"] for event in authority.events) == {"success": 1}


# Logins.


async def leaseway(*words: str, environment: Mapping[str, str]) -> tuple[str, str]:
    process = await fork_leaseway(words, {**os.environ, **environment}, None)
    async with asyncio.timeout(BOUND):
        out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
        assert await process.wait() == 0, err
    return out.decode(), err.decode()


async def test_each_tenant_uses_the_login_of_its_own_person_until_it_logs_out(
    tmp_path: Path,
) -> None:
    environment = vault_of(tmp_path)
    async with provider(lifetime=6) as authority, Resource() as resource:
        await resource.trust(authority)
        servers = {"whoami": entry(resource, {"authorization_code": {"for": "tenant"}})}
        async with (
            running(tmp_path, servers, workers=2, environment=environment) as (system, acme),
            AsyncClient(system.address, agent="test", tenant="beta") as beta,
            AsyncClient(system.address, agent="test", tenant="acme") as acme,
        ):
            problems = await acme.problems()
            assert any(problem.reason == "LOGIN_REQUIRED" for problem in problems)
            assert [server.state for server in await acme.servers()] == ["needs login"]
            await log_in(system, environment, "acme", "alice")
            await eventually(lambda: is_answered(acme))
            assert (await acme.call_tool("whoami", timeout=BOUND)).text == "alice"
            with pytest.raises(LoginRequired) as needed:
                await beta.call_tool("whoami", timeout=BOUND)
            assert "leaseway login whoami --tenant beta" in needed.value.advice
            await log_in(system, environment, "beta", "bob")
            await eventually(lambda: is_answered(beta))

            # Long enough for some renewals on two workers, whose refresh tokens rotate.
            loop = asyncio.get_running_loop()
            end = loop.time() + 15
            seen: Counter[tuple[str, str]] = Counter()
            while loop.time() < end or sum(seen.values()) < 1_000:
                found = await asyncio.gather(
                    *(client.call_tool("whoami", timeout=BOUND) for client in (acme, beta) * 20)
                )
                seen.update(
                    zip(("acme", "beta") * 20, (result.text for result in found), strict=True)
                )
            assert set(seen) == {("acme", "alice"), ("beta", "bob")}
            assert authority.count("success", "refresh_token") >= 2
            assert not [event for event in authority.events if event["event"] != "success"]

            listed, _ = await leaseway("logins", "--json", environment=environment)
            assert [row["tenant"] for row in json.loads(listed)] == ["acme", "beta"]
            shown = listed + system.logs() + repr(await acme.servers())
            assert "eyJ" not in shown
            config = ("--config", str(system.config))
            await leaseway("logout", "whoami", "--tenant", "beta", *config, environment=environment)
            await eventually(lambda: needs_login(beta))
            assert (await acme.call_tool("whoami", timeout=BOUND)).text == "alice"


async def needs_login(client: AsyncClient | AsyncSession, tool: str = "whoami") -> bool:
    try:
        await client.call_tool(tool, timeout=BOUND)
    except LoginRequired:
        return True
    except LeaseRevoked:  # its login has ended during a lease, which one call is told
        return False
    return False


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "leased"])
async def test_each_of_two_users_sees_only_himself_in_1000_interleaved_calls(
    tmp_path: Path, shared: bool
) -> None:
    environment = vault_of(tmp_path)
    # With long tokens, only the end of the connections ends the calls of somebody who logs out.
    async with provider(lifetime=6 if shared else 3_600) as authority, Resource() as resource:
        await resource.trust(authority)
        auth = {"authorization_code": {"for": "user"}}
        servers = {"whoami": entry(resource, auth, **{"truely-stateless": shared})}
        async with (
            running(tmp_path, servers, workers=2, environment=environment) as (system, client),
            AsyncClient(system.address, agent="test", user="bob") as bob,
        ):
            await log_in(system, environment, "default", "alice", "anna")
            anna = client.session("a", user="anna")
            await eventually(lambda: is_answered(anna))
            with pytest.raises(LoginRequired, match="--tenant default --user bob") as raised:
                await bob.call_tool("whoami", timeout=BOUND)
            assert (raised.value.tenant, raised.value.user) == ("default", "bob")
            with pytest.raises(UserRequired):
                await client.call_tool("whoami", timeout=BOUND)
            await log_in(system, environment, "default", "bob", "bob")
            await eventually(lambda: is_answered(bob))

            callers: list[AsyncClient | AsyncSession] = [anna, bob, client.session("b", user="bob")]
            seen: Counter[tuple[int, str]] = Counter()
            while sum(seen.values()) < 1_000:
                batch = callers * 20
                found = await asyncio.gather(
                    *(caller.call_tool("whoami", timeout=BOUND) for caller in batch)
                )
                seen.update((number % 3, result.text) for number, result in enumerate(found))
            assert set(seen) == {(0, "alice"), (1, "bob"), (2, "bob")}
            assert not [event for event in authority.events if event["event"] != "success"]

            listed, _ = await leaseway("logins", "--json", environment=environment)
            assert [row["user"] for row in json.loads(listed)] == ["anna", "bob"]
            config = ("--config", str(system.config))
            subject = ("--tenant", "default", "--user", "bob")
            await leaseway("logout", "whoami", *subject, *config, environment=environment)
            await eventually(lambda: needs_login(bob))
            assert (await anna.call_tool("whoami", timeout=BOUND)).text == "alice"


async def test_a_person_logs_in_at_the_link_of_the_error_and_nobody_elses_browser_can(
    tmp_path: Path,
) -> None:
    environment = vault_of(tmp_path)
    async with provider() as authority, Resource() as resource:
        await resource.trust(authority)
        servers = {"whoami": entry(resource, {"authorization_code": {"for": "user"}})}
        async with (
            running(tmp_path, servers, environment=environment, console=True) as (system, client),
            browser() as pages,
            browser() as others,
        ):
            await log_in(system, environment, "default", "bob", "bob")  # so that it is listed
            anna = client.session("a", user="anna")
            await eventually(lambda: is_answered(client.session("b", user="bob")))
            with pytest.raises(LoginRequired) as raised:
                await anna.call_tool("whoami", timeout=BOUND)
            link = raised.value.url
            assert link.startswith(f"{system.console}login/worker-1/")
            assert link not in raised.value.message
            with Client(system.address, user="anna") as blocking:
                blocked = await asyncio.to_thread(refused_link, blocking)
            assert blocked == link  # one for each subject

            async with pages.get(link) as page:
                shown = await page.text()
                assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"]
            assert "<b>anna</b>" in shown
            async with others.post(link, headers={"Sec-Fetch-Site": "cross-site"}) as page:
                assert page.status == 403
            address = await open_link(pages, link)
            stolen = await answer_pages(others, address, "mallory")
            assert "No login of this browser" in stolen
            assert "You are logged in" in await answer_pages(pages, address, "alice")
            await eventually(lambda: is_answered(anna))
            assert (await anna.call_tool("whoami", timeout=BOUND)).text == "alice"
            async with pages.get(link) as page:  # it works once
                assert page.status == 404
            assert link.rpartition("/")[2] not in system.logs()

            # The console's operator makes a link, to pass it on.
            headers = {"X-Leaseway-Console": "1"}
            body = {"server": "whoami", "tenant": "default", "user": "carol"}
            async with pages.post(f"{system.console}api/login", json=body, headers=headers) as made:
                path = (await made.json())["path"]
            carol = client.session("c", user="carol")
            address = await open_link(pages, f"{system.console}{path}")
            assert "<b>carol</b>" in await answer_pages(pages, address, "alice")
            await eventually(lambda: is_answered(carol))


def refused_link(client: Client) -> str:
    with pytest.raises(LoginRequired) as raised:
        client.call_tool("whoami", timeout=BOUND)
    return raised.value.url


async def test_a_call_waits_for_the_login_that_its_caller_is_asked_for(tmp_path: Path) -> None:
    environment = vault_of(tmp_path)
    asked: list[Mapping[str, Any]] = []

    async with provider() as authority, Resource() as resource:
        await resource.trust(authority)
        servers = {"whoami": entry(resource, {"authorization_code": {"for": "user"}})}
        async with (
            running(tmp_path, servers, environment=environment, console=True) as (system, client),
            browser() as pages,
        ):
            await log_in(system, environment, "default", "bob", "bob")
            await eventually(lambda: is_answered(client.session("b", user="bob")))

            async def accept(params: Mapping[str, Any]) -> dict[str, str]:
                asked.append(params)
                address = await open_link(pages, params["url"])
                assert "You are logged in" in await answer_pages(pages, address, "alice")
                return {"action": "accept"}

            async def decline(params: Mapping[str, Any]) -> dict[str, str]:
                asked.append(params)
                return {"action": "decline"}

            anna, carol = client.session("a", user="anna"), client.session("c", user="carol")
            with pytest.raises(LoginRequired, match="carol"):
                await carol.call_tool("whoami", timeout=BOUND, on_elicitation=decline)
            with pytest.raises(LoginRequired, match="carol"):  # long before the time is over
                await carol.call_tool("whoami", timeout=2, on_elicitation=lambda _: ACCEPTED)
            result = await anna.call_tool("whoami", timeout=BOUND, on_elicitation=accept)
            assert result.text == "alice"
            assert [each_result["mode"] for each_result in asked] == ["url", "url"]


async def test_no_token_and_no_client_secret_is_on_any_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_SCRYPT", QUICK_SCRYPT)
    spans = tmp_path / "spans.jsonl"
    async with provider(lifetime=6) as authority, Resource() as resource:
        await resource.trust(authority)
        credentials = {"client_id": "service", "client_secret": {"env": "TRACKER_SECRET"}}
        servers = {
            "whoami": entry(resource, {"authorization_code": {"for": "user"}}),
            "robot": entry(resource, {"client_credentials": credentials}),
            "child": python_server("counter.py"),
        }
        async with TraceCollector(spans) as collector:
            environment = {
                **vault_of(tmp_path),
                **otlp_environment(collector.endpoint),
                "OTEL_BSP_SCHEDULE_DELAY": "100",
                "TRACKER_SECRET": SECRET,
            }
            system = System(tmp_path, servers, environment=environment)
            system.worker_options = ("--audit", str(tmp_path / "audit"))
            async with system, AsyncClient(system.address, agent="test", user="anna") as anna:
                await log_in(system, environment, "default", "alice", "anna")
                await eventually(lambda: is_answered(anna, "whoami:whoami"))
                store = LoginStore(VaultPlace(tmp_path / "vault", tmp_path / "key", KEY))
                secrets = {SECRET}

                async def has_been_renewed() -> bool:
                    assert (await anna.call_tool("robot:whoami", timeout=BOUND)).text == "service"
                    assert (await anna.call_tool("whoami:whoami", timeout=BOUND)).text == "alice"
                    for login in store.all()[0]:
                        secrets.update({login.access_token, login.refresh_token} - {""})
                    return authority.count("success", "refresh_token") >= 2

                await eventually(has_been_renewed)
                assert len(secrets) >= 4
                shown = processes_below(worker.process.pid for worker in system.workers.values())
                assert any("counter.py" in text for text in shown.values())
                config = ("--config", str(system.config))
                subject = ("--tenant", "default", "--user", "anna")
                shown["logins"] = "".join(
                    await leaseway("logins", "--json", environment=environment)
                )
                shown["logout"] = "".join(
                    await leaseway("logout", "whoami", *subject, *config, environment=environment)
                )
                await eventually(lambda: needs_login(anna, "whoami:whoami"))
                with pytest.raises(LoginRequired) as raised:
                    await anna.call_tool("whoami:whoami", timeout=BOUND)
                shown["error"] = f"{raised.value} {vars(raised.value)}"
                shown["servers"] = str(await anna.servers()) + str(await anna.list_tools())
                shown["problems"] = str(await anna.problems())
                shown["logs"] = system.logs()
        shown["spans"] = spans.read_text()
        records = "".join(path.read_text() for path in sorted((tmp_path / "audit").iterdir()))
        shown["audit"] = records
        shown["files"] = "".join(
            path.read_bytes().decode(errors="replace")
            for path in tmp_path.rglob("*")
            if path.is_file() and path != system.config
        )
    assert '"whoami"' in records
    assert not {
        (way, form)
        for form in secret_forms(secrets)
        for way, text in shown.items()
        if len(form) >= 12 and form in text
    }


def processes_below(workers: Iterable[int]) -> dict[str, str]:
    """Return the command line and the environment of the processes of servers."""
    shown: dict[str, str] = {}
    found = list(workers)
    for parent in found:
        for task in Path(f"/proc/{parent}/task").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the thread has ended meanwhile
                found += map(int, (task / "children").read_text().split())
        shown[f"command line of {parent}"] = Path(f"/proc/{parent}/cmdline").read_text()
    for process in found[1:]:
        shown[f"environment of {process}"] = Path(f"/proc/{process}/environ").read_text()
    return shown

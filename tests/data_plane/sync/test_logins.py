"""The steps of people's logins that a worker takes for the console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.data_plane import notes
from tests.data_plane.conftest import Bench, Caller, worker_bench
from tests.data_plane.doubles.servers import MemoryCall

from leaseway.data_plane.core.ports import LoginSubject
from leaseway.spec.auth import Auth
from leaseway.v1 import execution_pb2, sync_pb2
from leaseway.vault.key import VaultPlace
from leaseway.wire import bounds
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, ELICIT_URL
from leaseway.wire.status import fault_from_status


class Links:
    """Logins of anna's that are finished by a code."""

    def use_console(self, url: str) -> None:
        pass

    def link(self, subject: LoginSubject) -> str:
        raise NotImplementedError

    def subject(self, ticket: str) -> LoginSubject:
        raise NotImplementedError

    async def begin(self, ticket: str, redirect: str) -> tuple[str, str]:
        raise NotImplementedError

    async def finish(self, state: str, answer: Mapping[str, str]) -> LoginSubject:
        if "fault" in answer:
            raise PermissionError(13, "Permission denied")
        if "code" not in answer:
            raise Fault(Reason.INVALID_REQUEST, "The login failed: there is no code.")
        return LoginSubject("mail", "acme", "anna")


def needed(url: str = "http://127.0.0.1/login/w/t") -> Fault:
    return Fault(Reason.LOGIN_REQUIRED, "The login has expired.", metadata={"url": url})


@pytest.mark.parametrize("answer", [{"code": "x"}, {"error": "access_denied"}])
async def test_calls_use_a_finished_login_before_its_person_hears_of_it(
    answer: dict[str, str],
) -> None:
    async with worker_bench(login_links=Links()) as bench:  # without a folder to look at
        changed = bench.worker.logins.next_change()
        step = sync_pb2.LoginStep(id=7, state="s", answer=answer)
        bench.plane.send(login_step=step)
        result = await bench.plane.expect("login_result")
        assert (result.id, result.user) == (7, "anna" if "code" in answer else "")
        assert changed.done() is ("code" in answer)


async def test_a_person_hears_of_a_failure_of_the_worker_at_once() -> None:
    async with worker_bench(login_links=Links()) as bench:
        bench.plane.send(login_step=sync_pb2.LoginStep(id=7, state="s", answer={"fault": ""}))
        result = await bench.plane.expect("login_result")
        assert (result.id, "see the worker's log" in result.message) == (7, True)


async def test_a_call_uses_a_login_that_another_process_has_just_finished(tmp_path: Path) -> None:
    place = VaultPlace(tmp_path / "vault", tmp_path / "key")
    place.logins.mkdir()
    async with worker_bench(vault=place) as bench:
        await bench.serve("mail", auth=Auth("authorization_code", "tenant"))
        caller = bench.caller()
        for tenant in ("acme", "beta", "gamma"):
            # More than one: on a busy machine a start may be repeated before anybody logs in.
            bench.servers.faults = [
                Fault(Reason.LOGIN_REQUIRED, "Nobody is logged in.") for _ in range(9)
            ]
            fault = await caller.refused("mail", tenant=tenant)
            assert fault.reason is Reason.LOGIN_REQUIRED
            bench.servers.faults = []
            (place.logins / tenant).touch()
            assert not (await caller.call("mail", tenant=tenant)).HasField("status")


async def test_a_login_that_a_tool_asks_for_uses_the_connection_that_replaces_its_own() -> None:
    async with worker_bench() as bench:
        await bench.serve("mail", auth=Auth("authorization_code", "tenant"))
        bench.servers.gate = asyncio.Event()
        caller, opened = bench.caller(), len(bench.servers.opened)
        call = await caller.begin(
            "mcp_admin", "mcp_login", tenant="acme", arguments=b'{"serverId":"mail"}'
        )
        await bench.until(lambda: len(bench.servers.opened) > opened)
        bench.worker.pool.replace(bench.worker.pool.resolve("mail", "acme", ""))
        bench.servers.gate.set()
        assert not (await caller.result(call)).HasField("status")


async def test_before_the_first_login_a_server_starts_for_who_calls_it_and_no_name_is_unknown() -> (
    None
):
    async with worker_bench() as bench:
        spec = bench.spec("mail", auth=Auth("authorization_code", "tenant"))
        waiting = bench.upsert(spec, tools={})
        waiting.toolset.protocol_version = ""
        await bench.push(waiting)
        assert not bench.servers.opened
        bench.servers.faults = [Fault(Reason.LOGIN_REQUIRED, "Nobody is here.") for _ in range(9)]
        fault = await bench.caller().refused("mail", tenant="acme")
        assert fault.reason is Reason.LOGIN_REQUIRED
        bench.servers.faults = []
        opened = len(bench.servers.opened)
        await bench.push(bench.upsert(spec))
        await bench.until(lambda: len(bench.servers.opened) > opened)


async def test_a_call_waits_for_a_first_login_as_long_as_its_server_lets_calls_take() -> None:
    async with worker_bench() as bench:
        auth = Auth("authorization_code", "tenant")
        waiting = bench.upsert(bench.spec("mail", auth=auth, call_timeout=0.6), tools={})
        waiting.toolset.protocol_version = ""
        await bench.push(waiting)
        bench.servers.faults = [needed() for _ in range(9)]
        caller = bench.caller()
        async with asyncio.timeout(bounds.CALL_TIMEOUT / 2):
            fault = await caller.refused("mail", tenant="acme", answers=[ELICIT, ELICIT_URL])
        assert fault.reason is Reason.LOGIN_REQUIRED
        assert any(message.asks for message in caller.frames)


async def test_a_worker_without_the_server_of_a_login_lets_another_worker_ask_for_it() -> None:
    async with worker_bench() as bench:
        fault = await bench.caller().refused(
            "mcp_admin", "mcp_login", tenant="acme", arguments=b'{"serverId":"mail"}'
        )
        assert fault.reason is Reason.SERVER_NOT_READY
        assert "serves no server mail" in fault.message


@pytest.mark.parametrize("shared", [True, False])
async def test_a_call_whose_login_has_ended_asks_for_the_next_one_and_is_sent_again(
    tmp_path: Path, shared: bool
) -> None:
    place = VaultPlace(tmp_path / "vault", tmp_path / "key")
    place.logins.mkdir()
    async with worker_bench(vault=place, login_links=Links()) as bench:
        await bench.hold("mail", shared=shared, auth=Auth("authorization_code", "tenant"))
        caller, about = bench.caller(), {"tenant": "acme", "session": "s1"}
        refused = await caller.begin("mail", **about)
        (call,) = await bench.wait_for_calls()
        call.fail(needed())
        fault = fault_from_status((await caller.result(refused)).status)
        assert (fault.reason, fault.started) == (Reason.LOGIN_REQUIRED, "no")

        asking = await caller.begin("mail", answers=[ELICIT, ELICIT_URL], **about)
        (call,) = await bench.wait_for_calls()
        call.fail(needed())
        await caller.until(lambda: any(message.asks for message in caller.frames))
        (ask,) = [ask for message in caller.frames for ask in message.asks]
        assert b"http://127.0.0.1/login/w/t" in ask.params
        accepted = execution_pb2.Answer(
            call_id=asking, ask_id=ask.ask_id, result=b'{"action":"accept"}'
        )
        await caller.send(answers=[accepted])
        for name in ("of somebody else", "of acme"):
            (place.logins / name).touch()
            (call,) = await bench.wait_for_calls()
            if name == "of acme":
                call.answer(b"{}")
            else:
                call.fail(needed())
        assert (await caller.result(asking)).payload == b"{}"


@asynccontextmanager
async def sent_before_a_login(folder: Path) -> AsyncIterator[tuple[Caller, int, MemoryCall, Bench]]:
    """Send a call to a server, after which somebody logs in."""
    place = VaultPlace(folder / "vault", folder / "key")
    place.logins.mkdir()
    async with worker_bench(vault=place) as bench:
        await bench.hold("mail", auth=Auth("authorization_code", "tenant"))
        caller = bench.caller()
        call_id = await caller.begin("mail", tenant="acme")
        (call,) = await bench.wait_for_calls()
        (place.logins / "acme").touch()
        yield caller, call_id, call, bench


async def test_a_call_is_sent_again_with_a_login_that_is_there_when_the_last_one_ends(
    tmp_path: Path,
) -> None:
    async with sent_before_a_login(tmp_path) as (caller, call_id, call, bench):
        call.fail(needed())
        (call,) = await bench.wait_for_calls()
        call.answer(b"{}")
        assert (await caller.result(call_id)).payload == b"{}"


async def test_a_call_that_its_server_may_have_started_is_not_sent_again(tmp_path: Path) -> None:
    async with sent_before_a_login(tmp_path) as (caller, call_id, call, _):
        call.fail(replace(needed(), started="yes"))
        fault = fault_from_status((await caller.result(call_id)).status)
        assert (fault.reason, fault.started) == (Reason.LOGIN_REQUIRED, "yes")


async def test_a_subscription_whose_login_ends_ends_because_of_that(tmp_path: Path) -> None:
    place = VaultPlace(tmp_path / "vault", tmp_path / "key")
    place.logins.mkdir()
    async with worker_bench(vault=place) as bench:
        await notes.serve(bench, auth=Auth("authorization_code", "tenant"))
        caller = bench.caller()
        call_id = await notes.follow(caller, tenant="acme")
        (follower,) = [each for opened in bench.servers.opened for each in opened.followed]
        (place.logins / "acme").touch()
        follower.fail(needed())
        assert (await notes.end_of(caller, call_id)).reason is Reason.LOGIN_REQUIRED

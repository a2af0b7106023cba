"""A worker lists a server for each user, and checks calls by what that user sees."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.conftest import BOUND
from tests.data_plane.conftest import worker_bench
from tests.data_plane.doubles.servers import ECHO

from leaseway.data_plane.sync import outgoing, subjects
from leaseway.spec.auth import Auth
from leaseway.spec.model import InstancePolicy, ServerSpec, VariantKey
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault, Reason

FOR_USERS = Auth("authorization_code", "user")
OWN = {"mine": msgspec.json.encode({"name": "mine", "inputSchema": {"type": "object"}})}
ANNA = {"tenant": "default", "user": "anna"}


@pytest.fixture
async def bench() -> AsyncIterator[Any]:
    """Run a worker whose control plane keeps listings of users; it serves `mail` to users."""
    async with worker_bench() as bench:
        bench.plane.lists_subjects = True
        bench.plane.end_stream()
        assert (await bench.plane.hello()).lists_subjects
        await bench.serve("mail", auth=FOR_USERS)
        bench.servers.tools = {**ECHO, **OWN}
        yield bench


def answer_to(listing: sync_pb2.SubjectListing, *exposed: str) -> sync_pb2.SubjectToolset:
    """Return the toolset of a listing that exposes these tools."""
    return sync_pb2.SubjectToolset(
        key=listing.key,
        launch_hash=listing.launch_hash,
        tenant=listing.tenant,
        user=listing.user,
        toolset=sync_pb2.Toolset(
            recorded=listing.lists.tools,
            exposed=[sync_pb2.ExposedTool(original_name=name, name=name) for name in exposed],
        ),
    )


def asking_for(spec: ServerSpec) -> sync_pb2.ListSubject:
    asked = sync_pb2.ListSubject(launch_hash=spec.launch_hash, tenant="default", user="anna")
    asked.key.server_id = spec.key.server_id
    return asked


def of_anna(bench: Any) -> list[Any]:
    return [instance for instance in bench.servers.opened if instance.spec.key.user == "anna"]


def names_of(listing: sync_pb2.SubjectListing) -> list[str]:
    return [msgspec.json.decode(tool.definition)["name"] for tool in listing.lists.tools]


async def test_a_first_call_waits_for_the_toolset_of_its_user(bench: Any) -> None:
    caller = bench.caller()
    call_id = await caller.begin("mail", "mine", arguments=b"{}", **ANNA)
    listing = await bench.plane.expect("subject_listing")
    assert (listing.tenant, listing.user, listing.key.tenant) == ("default", "anna", "")
    assert names_of(listing) == ["echo", "mine"]
    bench.plane.send(subject_toolset=answer_to(listing, "mine"))
    assert not (await caller.result(call_id)).HasField("status")
    assert (await caller.refused("mail", **ANNA)).reason is Reason.TOOL_NOT_FOUND
    assert len(of_anna(bench)) == 1, "the call uses the connection that listed"


@pytest.mark.parametrize("shared", [True, False])
async def test_a_user_who_is_asked_for_is_listed(bench: Any, shared: bool) -> None:
    spec = await bench.serve("chat", auth=FOR_USERS, shared=shared)
    asked = asking_for(spec)
    for _ in range(2):
        bench.plane.send(list_subject=asked)
        assert names_of(await bench.plane.expect("subject_listing")) == ["echo", "mine"]
    stay = [instance in bench.servers.live for instance in of_anna(bench)]
    assert stay == ([True] if shared else [False, False]), "without a lease, none stays"
    asked.launch_hash = "another"
    bench.plane.send(list_subject=asked)
    refused = await bench.plane.expect("subject_listing")
    assert refused.lists.problem.reason == "SERVER_NOT_READY"


async def test_who_logs_in_is_listed_unasked_and_a_logout_is_told(bench: Any) -> None:
    bench.servers.faults.append(Fault(Reason.LOGIN_REQUIRED, "Nobody is logged in."))
    bench.plane.send(list_subject=asking_for(bench.spec("mail", auth=FOR_USERS)))
    refused = await bench.plane.expect("subject_listing")
    assert refused.lists.problem.reason == "LOGIN_REQUIRED"
    bench.worker.pool.retry_logins()
    assert names_of(await bench.plane.expect("subject_listing")) == ["echo", "mine"]
    bench.servers.tools = dict(ECHO)
    bench.worker.pool.replace_logins({VariantKey("mail", "default", "anna")})
    assert names_of(await bench.plane.expect("subject_listing")) == ["echo"]
    bench.worker.pool.end_logins({VariantKey("mail", "default", "anna")})
    ended = await bench.plane.expect("subject_listing")
    assert (ended.user, ended.HasField("lists")) == ("anna", False)


async def test_an_ended_login_is_no_change_of_the_configuration(bench: Any) -> None:
    await bench.serve("time", auth=FOR_USERS, instances=InstancePolicy(start="eager"))
    pool = bench.worker.pool
    generation = pool.resolve("time", "default")
    await generation.wait_for_shared("")
    nobody = Fault(Reason.LOGIN_REQUIRED, "Nobody is logged in.")
    bench.servers.faults = [nobody] * 100
    pool.end_logins({VariantKey("time")})
    assert generation.draining, "nothing is served with the login that has ended"
    report = await bench.plane.expect_report(
        lambda report: any(problem.reason == "LOGIN_REQUIRED" for problem in report.problems)
    )
    assert {problem.reason for problem in report.problems} == {"LOGIN_REQUIRED"}


async def test_another_control_plane_is_told_what_was_listed(bench: Any) -> None:
    caller = bench.caller()
    call_id = await caller.begin("mail", "mine", arguments=b"{}", **ANNA)
    listing = await bench.plane.expect("subject_listing")
    bench.plane.send(subject_toolset=answer_to(listing, "mine"))
    await caller.result(call_id)
    bench.plane.end_stream()
    await bench.plane.hello()
    await bench.push()
    assert await bench.plane.expect("subject_listing") == listing


async def test_a_first_call_after_a_failed_listing_waits_anew_for_another_control_plane(
    bench: Any,
) -> None:
    own, bench.servers.tools = bench.servers.tools, dict(ECHO)
    await bench.serve("chat", auth=FOR_USERS, shared=False)
    bench.servers.tools = own
    bench.servers.faults.append(Fault(Reason.SERVER_NOT_READY, "It did not start."))
    about = {**ANNA, "arguments": b"{}", "session": "s1"}
    refused = await bench.caller().refused("chat", "mine", **about)
    assert refused.reason is Reason.TOOL_NOT_FOUND
    assert (await bench.plane.expect("subject_listing")).lists.HasField("problem")
    bench.plane.end_stream()
    await bench.plane.hello()
    await bench.push()
    caller = bench.caller()
    call_id = await caller.begin("chat", "mine", **about)
    listing = await bench.plane.expect("subject_listing")
    bench.plane.send(subject_toolset=answer_to(listing, "mine"))
    assert not (await caller.result(call_id)).HasField("status")


async def test_a_worker_with_more_users_than_queued_messages_joins_again(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "MAX_QUEUED", 32)
    monkeypatch.setattr(subjects, "_TOLD_AT_ONCE", 8)
    users, caller = {f"user-{number}" for number in range(50)}, bench.caller()
    for user in sorted(users):
        call_id = await caller.begin("mail", "mine", arguments=b"{}", tenant="default", user=user)
        listing = await bench.plane.expect("subject_listing")
        bench.plane.send(subject_toolset=answer_to(listing, "mine"))
        await caller.result(call_id)
    bench.plane.end_stream()
    await bench.plane.hello()
    await bench.push()
    told = [(await bench.plane.expect("subject_listing")).user for _ in users]
    assert set(told) == users


async def test_a_user_is_listed_who_is_asked_for_when_the_connection_has_just_listed_and_ended(
    bench: Any,
) -> None:
    caller = bench.caller()
    call_id = await caller.begin("mail", "mine", arguments=b"{}", **ANNA)
    bench.plane.send(subject_toolset=answer_to(await bench.plane.expect("subject_listing"), "mine"))
    await caller.result(call_id)
    of_anna(bench)[0].change_tools(dict(ECHO))
    assert names_of(await bench.plane.expect("subject_listing")) == ["echo"]  # never answered
    bench.servers.faults += [Fault(Reason.SERVER_NOT_READY, "It did not start.")] * 9
    of_anna(bench)[0].crash()
    await bench.until(lambda: not any(live in bench.servers.live for live in of_anna(bench)))
    bench.plane.send(list_subject=asking_for(bench.spec("mail", auth=FOR_USERS)))
    assert (await bench.plane.expect("subject_listing")).lists.HasField("problem")


async def test_what_a_users_connection_lists_later_is_sent(bench: Any) -> None:
    caller = bench.caller()
    call_id = await caller.begin("mail", "mine", arguments=b"{}", **ANNA)
    bench.plane.send(subject_toolset=answer_to(await bench.plane.expect("subject_listing"), "mine"))
    await caller.result(call_id)
    of_anna(bench)[0].change_tools(dict(ECHO))
    listing = await bench.plane.expect("subject_listing")
    assert names_of(listing) == ["echo"]
    bench.plane.send(subject_toolset=answer_to(listing, "echo"))

    async def is_echoed() -> bool:
        return not (await caller.call("mail", **ANNA)).HasField("status")

    async with asyncio.timeout(BOUND):
        while not await is_echoed():
            await asyncio.sleep(0.01)

"""Lists for one user: the control plane asks a worker once, and tells who must know."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from tests.conftest import BOUND
from tests.control_plane.conftest import Running
from tests.control_plane.core.builders import mail, spec
from tests.control_plane.fake_worker import FakeWorker, recorded, worker

from leaseway.v1 import admin_pb2, catalog_pb2, sync_pb2


def client_of(user: str) -> catalog_pb2.ClientInfo:
    return catalog_pb2.ClientInfo(protocol_version=1, user=user)


async def listed(running: Running, user: str) -> tuple[list[str], list[str]]:
    """Return the names of the tools that a user sees, and what is pending."""
    request = catalog_pb2.ListToolsRequest(client=client_of(user))
    found = await running.catalog.ListTools(request, timeout=BOUND)
    return [tool.name for tool in found.tools], list(found.pending)


async def resolved(running: Running, user: str, name: str) -> catalog_pb2.ResolvedTool:
    request = catalog_pb2.ResolveToolsRequest(client=client_of(user), names=[name])
    return (await running.catalog.ResolveTools(request, timeout=BOUND)).tools[0]


async def heard(watch: object) -> catalog_pb2.WatchToolsResponse:
    message = await watch.read()  # type: ignore[attr-defined]
    assert isinstance(message, catalog_pb2.WatchToolsResponse)
    return message


async def answer(fake: FakeWorker, user: str, tools: Iterable[str] = (), problem: str = "") -> None:
    """Send what the server lists for a user of the default tenant."""
    lists = sync_pb2.ProbeResult(tools=recorded(*tools), protocol_version="2025-11-25")
    if problem:
        lists.problem.CopyFrom(admin_pb2.Problem(scope="server", reason=problem, message="No."))
    held = fake.held["mail"].hashes
    await fake.send(
        subject_listing=sync_pb2.SubjectListing(
            key=held.key, launch_hash=held.launch_hash, tenant="default", user=user, lists=lists
        )
    )


async def serve_mail(running: Running, fake: FakeWorker) -> None:
    running.load(mail())
    await fake.serve("common")
    await fake.apply_until("mail")
    await running.until(lambda state: state.ready)


async def test_a_server_is_listed_once_for_all_who_wait_for_a_users_tools(
    running: Running,
) -> None:
    async with worker(running.address, lists_subjects=True) as fake:
        await serve_mail(running, fake)
        waiting = [asyncio.create_task(listed(running, "anna")) for _ in range(3)]
        asked = (await fake.receive("list_subject")).list_subject
        assert (asked.tenant, asked.user, asked.key.server_id) == ("default", "anna", "mail")
        await answer(fake, "anna", ["mine"])
        for result in await asyncio.gather(*waiting):
            assert result == (["x_mine"], [])
        toolset = (await fake.receive("subject_toolset")).subject_toolset.toolset
        assert [(tool.original_name, tool.name) for tool in toolset.exposed] == [("mine", "x_mine")]
        assert await listed(running, "anna") == (["x_mine"], [])

        first = asyncio.create_task(listed(running, "bob"))
        asked = (await fake.receive("list_subject")).list_subject  # and none for anna before it
        assert asked.user == "bob"
        await answer(fake, "bob", problem="LOGIN_REQUIRED")
        assert await first == (["mcp_login"], [])
        assert await listed(running, "bob") == (["mcp_login"], []), "it is not asked again at once"


async def test_a_name_of_another_server_does_not_wait_and_one_of_the_users_does(
    running: Running,
) -> None:
    async with worker(running.address, lists_subjects=True) as fake:
        await serve_mail(running, fake)
        running.load(mail(), spec("time"))
        await fake.serve("now")
        await fake.apply_until("mail", "time")
        assert (await resolved(running, "anna", "time:now")).of_user is False
        resolving = asyncio.create_task(resolved(running, "anna", "mail:mine"))
        await fake.receive("list_subject")
        await answer(fake, "anna", ["mine"])
        tool = await resolving
        assert (tool.original_name, tool.of_user) == ("mine", True)
        assert [ref.id for ref in tool.workers] == ["w1"]


async def test_watchers_hear_which_users_must_list_again(running: Running) -> None:
    async with worker(running.address, lists_subjects=True) as fake:
        await serve_mail(running, fake)
        watch = running.catalog.WatchTools(catalog_pb2.WatchToolsRequest())
        async with asyncio.timeout(BOUND):
            first = await heard(watch)
            assert not first.users_changed
            await answer(fake, "anna", ["mine"])
            while not (message := await heard(watch)).users_changed:
                pass
        assert list(message.users_changed) == ["anna"]
        assert message.registry_version == first.registry_version
        watch.cancel()


async def test_a_worker_cannot_list_a_server_that_it_does_not_serve(running: Running) -> None:
    async with worker(running.address, lists_subjects=True) as fake:
        await serve_mail(running, fake)
        fake.held["mail"].hashes.launch_hash = "another"
        await answer(fake, "anna", ["planted"])
        await fake.send(pulse=sync_pb2.Pulse())
        waiting = asyncio.create_task(listed(running, "anna"))
        await fake.receive("list_subject")
        await answer(fake, "anna", ["planted"])
        fake.held["mail"].hashes.launch_hash = mail().launch_hash
        await answer(fake, "anna", ["mine"])
        assert await waiting == (["x_mine"], [])

"""The statuses of resources that a control plane writes when it begins to lead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.conftest import BOUND
from tests.control_plane.core.builders import spec

from leaseway.control_plane.config.kubernetes import api
from leaseway.control_plane.config.kubernetes.api import CustomResourceList, KubernetesFailure
from leaseway.control_plane.config.kubernetes.resources import CustomResource, ResourceKind
from leaseway.control_plane.config.layers.sources import resource_source
from leaseway.control_plane.config.loading import FileContent, LeftOut
from leaseway.control_plane.config.schema.issues import ParsedConfig
from leaseway.control_plane.core.moment import Moment
from leaseway.control_plane.leadership import Elector
from leaseway.control_plane.plane import Plane
from leaseway.control_plane.resource_status import ResourceStatus
from leaseway.spec.model import VariantKey
from leaseway.wire.bounds import SETTLING

_SERVER = CustomResource(kind="MCPServer", namespace="team", name="a", uid="1", generation=1)


class FakeApi:
    """The API with one resource, or several with the same status.

    Attributes:
        status: The status of the resource.
        opened: Set when a control plane has begun to write statuses.
        opens: How often one has begun.
        written: The statuses that were written, with whether the plane had settled by then.
    """

    def __init__(
        self, plane: Plane, status: Mapping[str, Any], answer: Callable[[], Awaitable[None]]
    ) -> None:
        self.opened = asyncio.Event()
        self.opens = 0
        self._answer = answer
        self.written: asyncio.Queue[tuple[Mapping[str, Any], bool]] = asyncio.Queue()
        self._plane = plane
        self.status = status

    async def list(self, kind: ResourceKind) -> CustomResourceList:
        found = (replace(_SERVER, status=self.status),) if kind == _SERVER.kind else ()
        return CustomResourceList(found, "1")

    async def write_status(self, _resource: CustomResource, status: Mapping[str, Any]) -> None:
        await self._answer()
        self.status = status
        self.written.put_nowait((status, self._plane.state.settled))

    async def record_event(self, *_about: object) -> None:
        """Ignore an event."""


async def at_once() -> None:
    """Let the API write a status at once."""


@asynccontextmanager
async def writing(
    plane: Plane,
    monkeypatch: pytest.MonkeyPatch,
    *,
    loaded: Mapping[str, Any],
    newest: Mapping[str, Any],
    content: FileContent = "",
    elected: bool = False,
    names: Sequence[str] = ("a",),
    answer: Callable[[], Awaitable[None]] = at_once,
) -> AsyncIterator[FakeApi]:
    """Write the status of the resource.

    Args:
        plane: The plane.
        monkeypatch: Replaces the API.
        loaded: The status that the resource had when it was loaded.
        newest: The status that it has now.
        content: The content of its document.
        elected: Whether the plane leads after an election.
        names: The names of the resources that were loaded.
        answer: Waits before the API writes a status, or raises.
    """
    fake = FakeApi(plane, newest, answer)

    @asynccontextmanager
    async def open_fake(_namespace: str) -> AsyncIterator[FakeApi]:
        fake.opened.set()
        fake.opens += 1
        yield fake

    monkeypatch.setattr(api, "open_api", open_fake)
    unused: Any = None
    elector = Elector(unused, "127.0.0.1:1_me", 3) if elected else None
    if elector is not None:
        elector.leading = True
    status = ResourceStatus(plane, elector)
    sources = [
        resource_source(replace(_SERVER, name=name, uid=str(number), status=loaded))
        for number, name in enumerate(names, 1)
    ]
    status.loaded(dict.fromkeys(sources, content), ParsedConfig({}, frozenset(), (), broken=False))
    task = asyncio.create_task(status.run("team"))
    try:
        async with asyncio.timeout(BOUND):
            yield fake
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Clock:
    """A clock that stands still."""

    seconds = 0.0

    def __call__(self) -> Moment:
        return Moment(self.seconds, 1_800_000_000.0 + self.seconds)


def settle(plane: Plane, clock: Clock) -> None:
    clock.seconds += SETTLING
    with plane.transition() as (state, now):
        state.tick(now)


def configured(clock: Clock) -> Plane:
    plane = Plane(epoch=1, clock=clock)
    with plane.transition() as (state, now):
        state.apply_config({VariantKey("a"): spec("a")}, frozenset(), (), now)
    return plane


async def test_no_status_is_written_before_workers_could_tell_what_they_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    plane = configured(clock)
    async with writing(plane, monkeypatch, loaded={}, newest={}) as fake:
        await fake.opened.wait()
        await asyncio.sleep(0)
        settle(plane, clock)
        assert (await fake.written.get())[1]


async def test_a_new_leader_compares_with_what_the_earlier_one_has_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    plane = configured(clock)
    settle(plane, clock)
    async with writing(plane, monkeypatch, loaded={}, newest={}) as fake:
        current, _ = await fake.written.get()
    of_others = {**current, "tools": 7}
    async with writing(plane, monkeypatch, loaded=current, newest=of_others, elected=True) as fake:
        assert (await fake.written.get())[0] == current


async def test_a_status_that_someone_else_has_removed_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    plane = configured(clock)
    settle(plane, clock)
    async with writing(plane, monkeypatch, loaded={}, newest={}) as fake:
        first, _ = await fake.written.get()
        fake.status = {}
        clock.seconds += 300
        with plane.transition() as (state, now):
            state.apply_config(
                {VariantKey("a"): spec("a"), VariantKey("b"): spec("b")}, frozenset(), (), now
            )
        again, _ = await fake.written.get()
    assert again["observedGeneration"] == first["observedGeneration"] == 1
    assert len(again["conditions"]) == 3


async def test_a_resource_beyond_the_limit_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    plane = Plane(epoch=1, clock=clock)
    settle(plane, clock)
    served = {"conditions": [{"type": "Ready", "status": "True"}]}
    async with writing(plane, monkeypatch, loaded=served, newest=served, content=LeftOut()) as fake:
        status, _ = await fake.written.get()
    told = {found["type"]: (found["status"], found["reason"]) for found in status["conditions"]}
    assert told["Accepted"] == ("False", "TooManyResources")
    assert told["Ready"] == ("False", "NotAccepted")


async def test_the_statuses_of_many_resources_are_written_eight_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    plane = configured(clock)
    settle(plane, clock)
    sent: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def when_told() -> None:
        told = asyncio.Event()
        sent.put_nowait(told)
        await told.wait()

    names = [f"s{number}" for number in range(20)]
    async with writing(
        plane, monkeypatch, loaded={}, newest={}, names=names, answer=when_told
    ) as fake:
        waiting = [await sent.get() for _ in range(8)]
        await asyncio.sleep(0)
        assert sent.empty()
        for told in waiting:
            told.set()
        for _ in range(12):
            (await sent.get()).set()
        for _ in names:
            await fake.written.get()


async def test_a_status_is_sent_again_after_the_time_that_the_busy_api_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    plane = configured(clock)
    settle(plane, clock)
    busy = [KubernetesFailure("The API has too many requests.", 0.01)]

    async def busy_once() -> None:
        if busy:
            raise busy.pop()

    async with writing(plane, monkeypatch, loaded={}, newest={}, answer=busy_once) as fake:
        await fake.written.get()
        assert fake.opens == 1

"""Templates that take long: they end, and neither the loop nor other servers wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from tests.conftest import BOUND

from leaseway.data_plane.background import FairThreads
from leaseway.data_plane.kinds.http_api.rendering import Renderers
from leaseway.templates.engine import compiled
from leaseway.templates.limits import TemplateFailure

pytestmark = pytest.mark.usefixtures("leak_guard")

LONG = '"{}"'.format("ä" * 4_000_000).encode()
"""A text that takes milliseconds to encode."""
SLOW = compiled("{{ range 10000 }}{{ if len $ }}{{ end }}{{ end }}")
"""Each step encodes the whole text."""
QUICK = compiled("{{ len . }}")


@pytest.fixture
async def renderers() -> AsyncIterator[Renderers]:
    renderers = Renderers(timeout=2)
    yield renderers
    renderers.close()


async def test_a_quick_rendering_needs_no_process(renderers: Renderers) -> None:
    assert await renderers.render("s", QUICK, b"[1, 2]") == "2"
    assert not renderers._idle


async def test_a_long_rendering_gives_the_same_text_in_a_process(renderers: Renderers) -> None:
    patient = Renderers()
    try:
        template = compiled('{{ range . }}{{ printf "%v;" . }}{{ end }}')
        text = await patient.render("s", template, b"[" + b"1," * 20_000 + b"2]")
        assert text == "1;" * 20_000 + "2;"
        lines = compiled("\n\n{{ range . }}{{ range $ }}{{ . }}{{ end }}{{ end }}")
        with pytest.raises(TemplateFailure, match="more than") as error:
            await patient.render("s", lines, b"[" + b"1," * 20_000 + b"2]")
        assert error.value.line == 3
    finally:
        patient.close()


async def test_a_rendering_that_takes_too_long_ends(renderers: Renderers) -> None:
    async with asyncio.timeout(BOUND):
        with pytest.raises(TemplateFailure, match=r"more than 2 s"):
            await renderers.render("s", SLOW, LONG)
    assert await renderers.render("s", QUICK, LONG) == "8000000"


async def test_other_servers_do_not_wait_for_one_with_many_renderings(renderers: Renderers) -> None:
    many = [asyncio.create_task(renderers.render("bad", SLOW, LONG)) for _ in range(30)]
    await asyncio.sleep(0)
    assert await renderers.render("good", QUICK, LONG) == "8000000"
    assert sum(task.done() for task in many) <= 4
    for task in many:
        task.cancel()
    await asyncio.gather(*many, return_exceptions=True)


async def test_parties_take_turns_in_threads() -> None:
    threads, order, gate = FairThreads(1), list[str](), threading.Event()

    async def work(party: str) -> None:
        await threads.run(party, lambda: order.append(party))

    first = asyncio.create_task(threads.run("a", lambda: gate.wait(BOUND)))
    await asyncio.sleep(0)
    rest = [asyncio.create_task(work(party)) for party in "aaabbc"]
    await asyncio.sleep(0)
    rest[1].cancel()
    gate.set()
    await asyncio.gather(first, *rest, return_exceptions=True)
    assert order == ["a", "b", "c", "a", "b"]

"""The watch over all files of a configuration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import BOUND

from leaseway.control_plane.config.kubernetes.resources import MAX_RESOURCES, CustomResource
from leaseway.control_plane.config.layers.sources import Source, parse_sources
from leaseway.control_plane.config.loading import FileContent
from leaseway.control_plane.config.tree.files import Gone, Unreadable, read_config
from leaseway.control_plane.config.watch import reading
from leaseway.control_plane.config.watch.all_files import watch_sources

Watch = AsyncGenerator[dict[Source, FileContent], None]


@asynccontextmanager
async def watching(*sources: Source, **options: Any) -> AsyncIterator[Watch]:
    options = {"poll": 0.2, **options}
    async with asyncio.timeout(BOUND), aclosing(watch_sources(sources, **options)) as watch:
        yield watch


GONE = "(gone)"


async def until(watch: Watch, wanted: dict[str, str | None]) -> None:
    """Read changes until the files' names and texts are these."""
    async for found in watch:
        texts = {
            source.path.name: GONE if isinstance(content, Gone) else content
            for source, content in found.items()
        }
        if texts == wanted:
            return


@pytest.fixture
def system(tmp_path: Path) -> Source:
    path = tmp_path / "system.yaml"
    path.write_text("one")
    return Source("system", path)


async def test_the_first_look_is_at_everything(tmp_path: Path, system: Source) -> None:
    tenants = tmp_path / "tenants"
    tenants.mkdir()
    for name in ("b.yaml", "a.yaml"):
        (tenants / name).write_text(name)
    session = Source("session", tmp_path / "session.yaml")
    async with watching(system, Source("domain", tenants, folder=True), session) as watch:
        found = await anext(watch)
    assert [(source.path.name, source.tenant, text) for source, text in found.items()] == [
        ("system.yaml", "", "one"),
        ("a.yaml", "a", "a.yaml"),
        ("b.yaml", "b", "b.yaml"),
        ("session.yaml", "", None),
    ]


async def test_a_change_of_any_file_is_told_with_all_the_others(
    tmp_path: Path, system: Source
) -> None:
    domain = tmp_path / "acme.yaml"
    domain.write_text("x")
    async with watching(system, Source("domain", domain, "acme")) as watch:
        await anext(watch)
        domain.write_text("y")
        await until(watch, {"system.yaml": "one", "acme.yaml": "y"})
        system.path.write_text("two")
        await until(watch, {"system.yaml": "two", "acme.yaml": "y"})


async def test_a_folder_may_gain_and_lose_tenants(tmp_path: Path, system: Source) -> None:
    tenants = tmp_path / "tenants"
    tenants.mkdir()
    async with watching(system, Source("domain", tenants, folder=True)) as watch:
        await until(watch, {"system.yaml": "one"})
        (tenants / "acme.yaml").write_text("x")
        await until(watch, {"system.yaml": "one", "acme.yaml": "x"})
        (tenants / "acme.yaml").unlink()
        await until(watch, {"system.yaml": "one"})
        (tenants / "acme.yaml").write_text("y")
        await until(watch, {"system.yaml": "one", "acme.yaml": "y"})


async def test_a_folder_that_is_away_removes_no_tenant(tmp_path: Path, system: Source) -> None:
    tenants = tmp_path / "tenants"
    tenants.mkdir()
    (tenants / "acme.yaml").write_text("x")
    async with watching(system, Source("domain", tenants, folder=True)) as watch:
        await until(watch, {"system.yaml": "one", "acme.yaml": "x"})
        tenants.rename(tmp_path / "away")
        await until(watch, {"system.yaml": "one", "acme.yaml": GONE})
        tenants.mkdir()
        await until(watch, {"system.yaml": "one"})


async def test_a_folder_that_comes_back_may_still_be_filled(tmp_path: Path, system: Source) -> None:
    tenants = tmp_path / "tenants"
    tenants.mkdir()
    (tenants / "acme.yaml").write_text("x")
    skipped = 0.0
    options = {"deleted_after": 100.0, "clock": lambda: time.monotonic() + skipped}
    async with watching(system, Source("domain", tenants, folder=True), **options) as watch:
        await until(watch, {"system.yaml": "one", "acme.yaml": "x"})
        tenants.rename(tmp_path / "away")
        system.path.write_text("two")
        await until(watch, {"system.yaml": "two", "acme.yaml": "x"})
        skipped += 200.0
        system.path.write_text("three")
        await until(watch, {"system.yaml": "three", "acme.yaml": GONE})
        tenants.mkdir()
        system.path.write_text("four")
        await until(watch, {"system.yaml": "four", "acme.yaml": GONE})
        (tenants / "acme.yaml").write_text("x")
        await until(watch, {"system.yaml": "four", "acme.yaml": "x"})


async def test_a_file_that_may_be_missing_can_be_deleted(tmp_path: Path, system: Source) -> None:
    home = tmp_path / "home.yaml"
    home.write_text("x")
    async with watching(system, Source("global", home, optional=True)) as watch:
        await until(watch, {"system.yaml": "one", "home.yaml": "x"})
        home.unlink()
        await until(watch, {"system.yaml": "one", "home.yaml": None})


async def test_files_that_are_written_one_after_the_other_are_read_together(
    tmp_path: Path, system: Source
) -> None:
    """Between two of many writes the first file's own quiet period used to end."""
    domains = [Source("domain", tmp_path / f"t{n}.yaml", f"t{n}") for n in range(20)]
    everything = (system, *domains)

    def write(text: str) -> None:
        for source in everything:
            new = source.path.with_suffix(".new")
            new.write_text(text)
            new.replace(source.path)

    write("one")
    clock = 0.0  # the machine may be slow: writes alone end no quiet period
    async with watching(*everything, poll=3600.0, clock=lambda: clock) as watch:
        await anext(watch)
        following = asyncio.ensure_future(anext(watch))
        while not following.done():
            await asyncio.to_thread(write, "two")  # until the watching thread has noticed
            clock += 0.11
            await asyncio.wait({following}, timeout=0.3)
    assert set((await following).values()) == {"two"}


async def test_a_reading_under_which_files_change_is_read_again(
    tmp_path: Path, system: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = tmp_path / "acme.yaml"
    domain.write_text("one")

    def read(path: Path) -> str:
        text = read_config(path)
        if path == system.path and text == "two" and domain.read_text() != "two":
            new = domain.with_suffix(".new")
            new.write_text("two")
            new.replace(domain)
            system.path.write_text("two!")
        return text

    monkeypatch.setattr(reading, "read_config", read)
    async with watching(Source("domain", domain, "acme"), system, longest=BOUND) as watch:
        await anext(watch)
        fresh = tmp_path / "fresh"
        fresh.write_text("two")
        fresh.replace(system.path)
        found = await anext(watch)
    assert list(found.values()) == ["two", "two!"]


async def test_no_tenant_of_a_namespace_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = tuple(
        CustomResource(kind="MCPTenant", namespace="n", name=f"t{i}", uid=str(i), generation=1)
        for i in range(MAX_RESOURCES + 1)
    )

    async def follow(_namespace: str) -> AsyncIterator[tuple[CustomResource, ...]]:
        yield tenants
        await asyncio.Event().wait()

    place = "leaseway.control_plane.config.kubernetes.watch.follow_namespace"
    monkeypatch.setattr(place, follow)
    (source,) = parse_sources(["kubernetes=n"])
    async with watching(source) as watch:
        ((_, content),) = (await anext(watch)).items()
    assert isinstance(content, Unreadable)
    assert "has 2001 resources of the kind MCPTenant" in str(content)

"""Browsers as leased servers: each session has its own browser and page."""

from __future__ import annotations

import asyncio
import io
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from PIL import Image, ImageChops, ImageDraw
from tests.conftest import BOUND, ServerCommand
from tests.e2e.mcp_front import front
from tests.e2e.system import eventually, running

from leaseway.sdk import ArtifactLost, AsyncClient, AsyncSession, ToolResult

WIDTH, HEIGHT = 400, 300
ROUNDS = 3


@dataclass(frozen=True)
class Page:
    """A page with known pixels: one box on a background of one colour."""

    background: str
    box: tuple[int, int, int, int]

    @property
    def path(self) -> str:
        return f"/{self.background}/" + "/".join(map(str, self.box))

    def html(self) -> str:
        left, top, width, height = self.box
        return (
            f"<!doctype html><title>{self.background}</title>"
            f"<body style='margin:0;background:#{self.background}'>"
            f"<div style='position:absolute;background:#102030;left:{left}px;top:{top}px;"
            f"width:{width}px;height:{height}px'></div>"
        )

    def picture(self) -> Image.Image:
        left, top, width, height = self.box
        picture = Image.new("RGB", (WIDTH, HEIGHT), f"#{self.background}")
        corners = (left, top, left + width - 1, top + height - 1)
        ImageDraw.Draw(picture).rectangle(corners, fill="#102030")
        return picture


PAGES = {
    "red": [Page("ff0000", (10 * n, 20, 50 + n, 40)) for n in range(ROUNDS)],
    "green": [Page("00aa00", (200, 15 * n, 30, 90 + n)) for n in range(ROUNDS)],
}


class _Site(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        background, *box = self.path.strip("/").split("/")
        known = len(box) == 4
        left, top, width, height = map(int, box) if known else (0, 0, 0, 0)
        body = Page(background, (left, top, width, height)).html().encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Do not log."""


@pytest.fixture
def site() -> Iterator[str]:
    """Run a server of pages; return its origin."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def browser(npm_server: ServerCommand, chromium: str, folder: Path) -> dict[str, object]:
    command = npm_server("playwright-mcp")
    options = ["--headless", "--isolated", "--no-sandbox", "--executable-path", chromium]
    options += ["--viewport-size", f"{WIDTH}x{HEIGHT}", "--output-dir", str(folder / "output")]
    options += [
        "--timeout-action",
        str(int(BOUND * 1000)),
    ]  # the default of 5 s is too short for a busy machine
    return {"transport": "stdio", "command": command[0], "args": [*command[1:], *options]}


def image_of(result: ToolResult) -> dict[str, Any]:
    (image,) = [item for item in result.content if item["type"] == "image"]
    return image


def same(data: bytes, page: Page) -> bool:
    shown = Image.open(io.BytesIO(data)).convert("RGB")
    wanted = page.picture()
    return shown.size == wanted.size and ImageChops.difference(shown, wanted).getbbox() is None


async def visit(session: AsyncSession, site: str, page: Page) -> None:
    result = await session.call_tool("browser_navigate", {"url": site + page.path})
    assert not result.is_error, result.text


async def screenshot(session: AsyncSession, *, inline: bool = False) -> ToolResult:
    arguments = {"type": "png"}
    result = await session.call_tool("browser_take_screenshot", arguments, inline_media=inline)
    assert not result.is_error, result.text
    return result


@pytest.mark.npm
@pytest.mark.usefixtures("leak_guard")
async def test_two_sessions_use_their_own_browsers_and_get_references_or_inline_media(
    tmp_path: Path, npm_server: ServerCommand, chromium: str, site: str
) -> None:
    async with running(tmp_path, {"browser": browser(npm_server, chromium, tmp_path)}) as (
        _,
        client,
    ):
        references: dict[str, str] = {}

        async def use_browser(name: str) -> None:
            async with client.session(name) as session:
                for page in PAGES[name]:
                    await visit(session, site, page)
                    image = image_of(await screenshot(session))
                    data = await session.read_artifact(image["artifact"])
                    assert (image["mimeType"], image["byteLength"]) == ("image/png", len(data))
                    assert same(data, page), f"Session {name} got the screenshot of another page."
                    references[name] = image["artifact"]
                result = await screenshot(session, inline=True)
                assert "artifact" not in image_of(result)
                (shown,) = [item for item in await result.for_model() if item["type"] == "image"]
                assert shown["mime_type"] == "image/png"

        async with asyncio.TaskGroup() as group:
            for name in PAGES:
                group.create_task(use_browser(name))

        await _check_only_own_session_reads(client, references)


async def _check_only_own_session_reads(client: AsyncClient, references: dict[str, str]) -> None:
    pattern = r"artifacts/mcp/browser/browser_take_screenshot/[0-9TZ-]+-[0-9a-f-]{36}\.png"
    assert all(re.fullmatch(pattern, reference) for reference in references.values()), references
    with pytest.raises(ArtifactLost):
        await client.session("green").read_artifact(references["red"])
    assert await client.session("red").read_artifact(references["red"])


@pytest.mark.npm
@pytest.mark.usefixtures("leak_guard")
@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_an_ai_client_keeps_its_page_from_call_to_call(
    tmp_path: Path, npm_server: ServerCommand, chromium: str, site: str, era: str
) -> None:
    servers = {"browser": browser(npm_server, chromium, tmp_path)}
    async with (
        running(tmp_path, servers) as (system, sdk),
        front(system) as url,
        Client(url, mode=era) as one,
        Client(url, mode=era) as other,
    ):
        listed = {tool.name: tool.input_schema for tool in (await one.list_tools()).tools}
        has_argument = "session" in listed["browser_navigate"]["properties"]
        assert has_argument == (era == "2026-07-28")
        sessions: list[dict[str, str]] = []
        for client, pages in ((one, PAGES["red"]), (other, PAGES["green"])):
            target = {"url": site + pages[0].path}
            opened = await client.call_tool("browser_navigate", target)
            assert not opened.is_error, opened
            said = (opened.meta or {}).get("leaseway/session")
            sessions.append({"session": said} if said else {})
        assert all(sessions) == has_argument
        clients = ((one, sessions[0], PAGES["red"]), (other, sessions[1], PAGES["green"]))
        for client, session, pages in clients:
            seen = await client.call_tool("browser_snapshot", session)
            assert pages[0].path in str(seen.content[0])

        async def each_has_a_lease() -> bool:  # workers report leases with a delay
            return len(await sdk.leases()) == 2

        await eventually(each_has_a_lease)

"""Debian's Chromium without a window, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

_START = 60.0
_ANSWER = 60.0


def chromium() -> str:
    """Return the path of Chromium; without it, skip the test or fail if it is required."""
    found = shutil.which("chromium")
    if found is None:
        if "chromium" in os.environ.get("LEASEWAY_REQUIRE", "").split(","):
            pytest.fail("LEASEWAY_REQUIRE names chromium, and there is none on the PATH")
        pytest.skip("chromium is not installed")
    return found


class Page:
    """One page of a browser.

    Attributes:
        complaints: What the page has logged as an error, and what its policy refused.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []

    async def read(self) -> None:
        """Read the browser's messages until it exits."""
        async for message in self._socket:
            said = json.loads(message.data)
            waiting = self._waiting.pop(said.get("id", 0), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(said)
            elif said.get("method") == "Log.entryAdded":
                self.complaints.append(said["params"]["entry"]["text"])
            elif said.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(said["params"]["exceptionDetails"])[:800])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to the browser and return its result."""
        number = next(self._numbers)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(_ANSWER):
            answer = await self._waiting[number]
        assert "error" not in answer, f"{method}: {answer}"
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, url: str, *, width: int = 1280, dark: bool = False) -> None:
        """Open a page with a size and colour scheme."""
        await self.send("Log.enable")
        await self.send("Runtime.enable")
        await self.send("Page.enable")
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])
        await self.send("Page.navigate", url=url)

    async def run(self, expression: str) -> Any:
        """Run a script in the page and return its value; await promises."""
        answer = await self.send(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, json.dumps(answer["exceptionDetails"])[:800]
        return answer["result"].get("value")

    async def processor_time(self) -> float:
        """Return the seconds of processor time that the page has used."""
        await self.send("Performance.enable")
        answer = await self.send("Performance.getMetrics")
        return next(
            float(metric["value"]) for metric in answer["metrics"] if metric["name"] == "ThreadTime"
        )

    async def until(self, expression: str, within: float = 60.0) -> Any:
        """Wait until a script's value is true."""
        value: Any = None
        try:
            async with asyncio.timeout(within):
                while not (value := await self._tried(expression)):
                    await asyncio.sleep(0.1)
        except TimeoutError:
            text = await self.run("document.body.innerText")
            pytest.fail(f"never true: {expression}\n{text[:2000]}\n{self.complaints}")
        return value

    async def _tried(self, expression: str) -> Any:
        try:
            return await self.run(expression)
        except AssertionError:
            return None  # the page is between two documents

    async def text(self) -> str:
        """Return the page's text."""
        return str(await self.run("document.body.innerText"))

    async def shot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        width, height = await self.run("[innerWidth, document.body.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": min(max(height, 400), 2400), "scale": 1}
        answer = await self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))


@asynccontextmanager
async def browser(folder: Path, *options: str) -> AsyncIterator[Page]:
    """Yield a page of a new browser, which is started with options of Chromium."""
    process = await asyncio.create_subprocess_exec(
        chromium(),
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-first-run",
        *options,
        "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'profile'}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(_START):
            while b"DevTools listening" not in (line := await process.stderr.readline()):
                assert line, "chromium ended at its start"
        drain = asyncio.create_task(_drain(process.stderr))
        port = line.split(b":")[2].split(b"/")[0].decode()
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [target for target in await answer.json() if target["type"] == "page"]
            async with session.ws_connect(
                pages[0]["webSocketDebuggerUrl"], max_msg_size=0
            ) as socket:
                page = Page(socket)
                reading = asyncio.create_task(page.read())
                try:
                    yield page
                finally:
                    reading.cancel()
                    drain.cancel()
                    await asyncio.gather(reading, drain, return_exceptions=True)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _drain(stream: asyncio.StreamReader) -> None:
    while await stream.readline():
        pass

"""Each fenced block of the documents that is code works: one runner for each language.

A block without a runner, in a language without one, or code that is fenced as plain text fails.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import click
import pytest
import yaml
from tests.conftest import BOUND, ROOT
from tests.data_plane.artifact_calls import PNG
from tests.e2e.forking import run_leaseway

from leaseway.cli.app import cli as main_command
from leaseway.control_plane.config.schema.keys import native_schema
from leaseway.identity.settings import read_identity_file
from leaseway.sdk.testing import CallContext, FakeLeaseway, Media

PAGES: Final = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "deploy").rglob("*.md")),
]
DIAGRAMS: Final = {"README.md", "CONTRIBUTING.md", "docs/design.md"}
"""Pages with one block without a language, which is a drawing."""
MESSAGES: Final = {"docs/kit.md"}
"""Pages with one block of the language text, which is what a program prints."""
ELSEWHERE: Final = {
    "docs/frameworks.md": "tests/integrations/test_frameworks.py, in the frameworks' environments",
    "README.md": "tests/test_readme.py, against the system of the quick start",
}
"""Pages whose python blocks another test runs."""
SPHINX: Final = {"{eval-rst}", "{toctree}"}
"""Directives that `make docs` reads, with warnings as errors."""
SERVER_KEYS: Final = set(native_schema()["$defs"]["server"]["properties"])
CODE: Final = re.compile(
    r"^\s*(leaseway |\$ |import |from \w+ import|async |await |def |class |\w+ = \w+\(|\w+: )",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Fence:
    """A fenced block."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def _fences() -> Iterator[Fence]:
    for path in PAGES:
        page = path.read_text()
        for found in re.finditer(r"^```([^\n]*)\n(.*?)^```\s*$", page, re.MULTILINE | re.DOTALL):
            line = page.count("\n", 0, found.start()) + 1
            yield Fence(path.relative_to(ROOT).as_posix(), line, found[1], found[2])


FENCES: Final = list(_fences())


def of(*languages: str) -> pytest.MarkDecorator:
    found = [fence for fence in FENCES if fence.language in languages]
    return pytest.mark.parametrize("fence", found, ids=str)


def test_every_block_has_a_runner() -> None:
    known = {"python", "yaml", "json", "toml", "sh", "console", "text", "", *SPHINX}
    assert {str(fence) for fence in FENCES if fence.language not in known} == set()
    indented = [path.name for path in PAGES if re.search(r"^ +```", path.read_text(), re.MULTILINE)]
    assert indented == [], "an indented block would not be found"


def test_no_code_is_fenced_as_text() -> None:
    plain = [fence for fence in FENCES if fence.language in ("text", "")]
    assert [str(fence) for fence in plain if CODE.search(fence.text)] == []
    assert {fence.page for fence in plain if fence.language == ""} == DIAGRAMS
    assert {fence.page for fence in plain if fence.language == "text"} == MESSAGES
    assert len(plain) == len(DIAGRAMS) + len(MESSAGES)


@of("json")
def test_json_is_valid(fence: Fence) -> None:
    assert isinstance(json.loads(fence.text), dict)


@of("toml")
def test_toml_is_an_identity_file(fence: Fence, tmp_path: Path) -> None:
    assert tomllib.loads(fence.text)
    files = {
        "keys.json": '{"keys": []}',
        "introspection-secret": "secret",
        "identity.toml": fence.text,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    assert read_identity_file(tmp_path / "identity.toml")


@of("yaml")
async def test_yaml_is_a_configuration_or_keys_of_a_server(fence: Fence, tmp_path: Path) -> None:
    found = yaml.safe_load(dedent(fence.text))
    if "servers" in found:
        file = tmp_path / "mcp.yaml"
        file.write_text(fence.text if "version" in found else f"version: 1\n{fence.text}")
        done = await run_leaseway("check", str(file))
        assert done.status == 0, done.stdout + done.stderr
        return
    if set(found) <= SERVER_KEYS:
        return
    ((_, entry),) = found.items()  # a server with its id
    assert set(entry) <= SERVER_KEYS


def _commands(fence: Fence) -> Iterator[list[str]]:
    """Yield the words of each command of a block, without variables and redirections."""
    text = re.sub(r"<<EOF\n.*?^EOF$", "", fence.text, flags=re.MULTILINE | re.DOTALL)
    if fence.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and (words[0] == "export" or re.fullmatch(r"[A-Z_]+=.*", words[0])):
            words.pop(0)
        if words:
            yield [*words[: words.index("<")]] if "<" in words else words


@of("sh", "console")
def test_shell_commands_are_commands(fence: Fence) -> None:
    text = (
        "\n".join(map(shlex.join, _commands(fence))) if fence.language == "console" else fence.text
    )
    checked = subprocess.run(
        ["bash", "-n"], input=text, text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    for words in _commands(fence):
        if "leaseway" in words[:1]:
            _parse(words[1:])
        elif words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
        for word in words if words[0] != "leaseway" else ():
            if word.startswith(("tools/", "deploy/")):
                assert (ROOT / word).exists(), word


def _parse(words: list[str]) -> None:
    """Parse the words of a `leaseway` command with its own options; nothing runs."""
    context = click.Context(main_command)
    command: Any = main_command
    rest = words
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        assert found is not None, words
        command, rest = found, rest[1:]
    # Values such as files are not checked: they exist only where the command runs.
    command.make_parser(context).parse_args(list(rest))
    required = [
        parameter
        for parameter in command.params
        if parameter.required and isinstance(parameter, click.Argument)
    ]
    values = [word for word in rest if not word.startswith("-")]
    assert len(values) >= len(required), words


PYTHON: Final = [fence for fence in FENCES if fence.language == "python"]


@pytest.mark.parametrize(
    "fence", [fence for fence in PYTHON if fence.page not in ELSEWHERE], ids=str
)
def test_python_runs_against_real_planes(fence: Fence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the block, then each function that it defines, with a client or session."""
    if "fastapi" in fence.text:
        pytest.importorskip("fastapi")
    with ExitStack() as stack:
        fake = stack.enter_context(_fake())
        monkeypatch.setenv("LEASEWAY_ADDRESS", fake.address)
        program = fence.text.replace("127.0.0.1:7600", fake.address)
        scope: dict[str, Any] = {"__name__": "block"}
        exec(compile(program, str(fence), "exec"), scope)
        if "app" in scope:
            asyncio.run(_serve_conversation(scope["app"], fake))
            return
        for value in tuple(scope.values()):
            if inspect.isfunction(value) and value.__module__ == "block":
                _call(value, fake)


def test_python_satisfies_a_type_checker(tmp_path: Path) -> None:
    """Check what readers copy as strictly as many of them do, except for missing annotations."""
    for number, fence in enumerate(PYTHON):
        if fence.page != "docs/frameworks.md":
            # In the file, because other options of mypy would leave its cache of our code unused.
            options = "# mypy: allow-untyped-defs, allow-incomplete-defs\n"
            (tmp_path / f"block_{number}.py").write_text(options + fence.text)
    found = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=10 * BOUND,
        check=False,
    )
    where = "\n".join(f"block_{number}: {fence}" for number, fence in enumerate(PYTHON))
    assert found.returncode == 0, f"{found.stdout}{found.stderr}\n{where}"


def _call(function: Callable[..., Any], fake: FakeLeaseway) -> None:
    parameters = list(inspect.signature(function).parameters)
    if parameters == ["sync_session"]:
        with fake.client(key="any") as client, client.session("docs") as session:
            assert function(session)
    elif parameters in (["client"], ["session"]):
        asyncio.run(_await(function, parameters[0], fake))
    elif not parameters and not inspect.iscoroutinefunction(function):
        assert function() is not None


async def _await(function: Callable[..., Any], parameter: str, fake: FakeLeaseway) -> None:
    async with fake.async_client(key="any") as client, client.session("docs") as session:
        running = asyncio.ensure_future(function(session if parameter == "session" else client))
        if function.__name__ != "follow":  # which waits for changes
            async with asyncio.timeout(BOUND):
                await running
            return
        _, pending = await asyncio.wait([running], timeout=0.5)
        running.cancel()
        assert pending, running.exception()


async def _serve_conversation(app: Any, fake: FakeLeaseway) -> None:
    """Send the requests of a conversation to the web service of the documents."""
    async with app.router.lifespan_context(app):
        opened = await _request(app, "POST", "/conversations/7", {"url": "https://a.example"})
        assert opened["content"] == [{"type": "text", "text": "opened https://a.example"}]
        for lease in fake.leases:
            fake.expire_lease(lease)
        again = await _request(app, "POST", "/conversations/7", {"url": "https://b.example"})
        assert "expired" in again["restarted"]
        assert await _request(app, "DELETE", "/conversations/7") is True
    assert fake.leases == []


async def _request(app: Any, method: str, path: str, body: object = None) -> Any:
    """Send one request to an ASGI application; return the JSON of its response."""
    sent = [{"type": "http.request", "body": json.dumps(body).encode()}]
    received: list[Any] = []

    async def send(message: Any) -> None:
        received.append(message)

    async def receive() -> Any:
        return sent.pop() if sent else await asyncio.Event().wait()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    async with asyncio.timeout(BOUND):
        await app(scope, receive, send)
    text = b"".join(message.get("body", b"") for message in received)
    assert received[0]["status"] == 200, text
    return json.loads(text)


def _fake() -> FakeLeaseway:
    """Return planes with everything that the documents call."""
    fake = FakeLeaseway()
    browser = fake.server("browser", stateful=True, prefix="browser_")
    files = fake.server("files", stateful=True)

    @browser.tool(name="open")
    def browser_open(url: str) -> str:
        return f"opened {url}"

    @browser.tool
    def take_screenshot(type: str) -> Media:  # noqa: A002 - the documents' argument
        return Media(PNG, f"image/{type}")

    @files.tool
    def list_files() -> str:
        return "notes.md"

    @fake.tool
    async def build(target: str, context: CallContext) -> str:
        context.progress(1, 2)
        return f"built {target}"

    @fake.server("trips", stateful=True).tool
    async def book_trip(context: CallContext) -> str:
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        params = {"message": "Who travels?", "requestedSchema": schema}
        answer: Any = await context.ask("elicitation/create", params)
        return str(answer["content"]["name"])

    @fake.prompt()
    def review(language: str) -> str:
        return f"Review this {language}."

    @fake.resource_template("file:///{path}")
    def read(path: str) -> str:
        return path

    files.resource("file:///notes.md", "# Notes")
    return fake

"""`leaseway prompts`, `prompt`, `resources` and `resource`, with a fake client."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import Result
from tests.cli import memory
from tests.cli.fakes import FakeClient, install_client

from leaseway.sdk import (
    Prompt,
    PromptArgument,
    PromptList,
    Resource,
    ResourceList,
    ResourceTemplate,
    ResourceTemplateList,
    ServerInfo,
)
from leaseway.sdk.calls.prompt_results import PromptResult, ResourceResult

Run = Callable[..., Result]

CITY = PromptArgument("city", "", "Which.", True)
UNIT = PromptArgument("unit", "", "", False)
PROMPT = Prompt(
    name="w_ask",
    server_id="w",
    original_name="ask",
    title="",
    description="Asks.\nMore.",
    arguments=(CITY, UNIT),
    extra={"icons": []},
    shared=True,
)
RESOURCE = Resource(
    uri="file:///a.txt",
    server_id="w",
    name="a",
    title="",
    description="A file.",
    mime_type="text/plain",
    extra={"size": 3},
    shared=False,
)
TEMPLATE = ResourceTemplate(
    uri_template="file:///{path}",
    server_id="w",
    name="any",
    title="",
    description="",
    mime_type="",
    extra={},
    shared=False,
)
SERVER = replace(memory.SERVER, id="w")


class _Client(FakeClient):
    """Returns fixed responses, and records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.pending: tuple[str, ...] = ()
        self.prompt: dict[str, Any] = {"messages": []}
        self.contents: list[dict[str, Any]] = []

    async def servers(self) -> list[ServerInfo]:
        return [SERVER]

    async def list_prompts(self, servers: list[str] | None) -> PromptList:
        listed = [PROMPT] if servers in (None, ["w"]) else []
        return PromptList(listed, 9, self.pending)

    async def list_resources(self, servers: list[str] | None) -> ResourceList:
        return ResourceList([RESOURCE] if servers in (None, ["w"]) else [], 9, self.pending)

    async def list_resource_templates(self, servers: list[str] | None) -> ResourceTemplateList:
        listed = [TEMPLATE] if servers in (None, ["w"]) else []
        return ResourceTemplateList(listed, 9, self.pending)

    async def get_prompt(self, name: str, arguments: dict[str, str], **rest: Any) -> PromptResult:
        self.asked.append((name, arguments, rest))
        return PromptResult(json.dumps(self.prompt).encode())

    async def read_resource(self, uri: str, **rest: Any) -> ResourceResult:
        self.asked.append((uri, rest))
        return ResourceResult(json.dumps({"contents": self.contents}).encode())

    def session(self, key: str) -> Self:
        self.asked.append(("session", key))
        return self


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> _Client:
    return install_client(monkeypatch, _Client())


def test_prompts_are_listed_with_their_arguments(run: Run, client: _Client) -> None:
    header, row = run("prompts").stdout.splitlines()
    assert header.split()[0] == "NAME"
    assert row.split() == ["w_ask", "w:ask", "city*,", "unit", "shared", "Asks."]


def test_prompts_as_json_have_all_fields(run: Run, client: _Client) -> None:
    [prompt] = json.loads(run("prompts", "w", "--json").stdout)
    assert prompt["qualified_name"] == "w:ask"
    assert prompt["arguments"][0] == {
        "name": "city",
        "title": "",
        "description": "Which.",
        "required": True,
        "extra": {},
    }
    assert prompt["extra"] == {"icons": []}


def test_resources_are_listed_before_templates(run: Run, client: _Client) -> None:
    _, resource, template = run("resources").stdout.splitlines()
    assert resource.split()[:5] == ["w", "file:///a.txt", "resource", "a", "text/plain"]
    assert template.split()[:5] == ["w", "file:///{path}", "template", "any", "-"]
    listed = json.loads(run("resources", "--json").stdout)
    assert [(each_resource["uri"], each_resource["template"]) for each_resource in listed] == [
        ("file:///a.txt", False),
        ("file:///{path}", True),
    ]
    assert listed[0]["extra"] == {"size": 3}


@pytest.mark.parametrize("command", ["prompts", "resources"])
def test_an_unknown_server_is_an_error_with_similar_ids(
    run: Run, client: _Client, command: str
) -> None:
    done = run(command, "ww")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "leaseway: There is no server 'ww'. Did you mean w?\n"


@pytest.mark.parametrize("command", ["prompts", "resources"])
def test_servers_that_still_start_are_listed_on_stderr(
    run: Run, client: _Client, command: str
) -> None:
    client.pending = ("slow",)
    assert run(command, "--json").stderr == "leaseway: Still starting: slow.\n"


def test_a_prompt_prints_each_message(run: Run, client: _Client) -> None:
    client.prompt = {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Weather?"}},
            {"role": "assistant", "content": {"type": "image", "mimeType": "image/png"}},
            {"role": "user", "content": [{"type": "text", "text": word} for word in ("A", "B")]},
        ]
    }
    done = run("prompt", "w_ask", "city=Rome", "unit=5", "--server", "w", "--timeout", "3")
    assert client.asked[0] == (
        "w_ask",
        {"city": "Rome", "unit": "5"},
        {"server": "w", "timeout": 3.0},
    )
    assert done.stdout == "user: Weather?\nuser: A\nuser: B\n"
    assert done.stderr == "assistant: [image image/png; --json prints it]\n"
    assert json.loads(run("prompt", "w_ask", "--json").stdout) == client.prompt


def test_a_prompt_in_a_session_names_the_session(run: Run, client: _Client) -> None:
    run("prompt", "w_ask", "--session", "dialog-42")
    assert client.asked[0] == ("session", "dialog-42")
    assert client.closed


def test_a_prompt_argument_without_a_key_is_a_usage_error(run: Run, client: _Client) -> None:
    done = run("prompt", "w_ask", "Rome")
    assert done.exit_code == 2
    assert "key=value" in done.stderr


def test_a_resources_text_is_printed(run: Run, client: _Client) -> None:
    client.contents = [{"uri": "x", "text": "one"}, {"uri": "y", "text": "two"}]
    done = run("resource", "file:///a.txt", "--server", "w")
    assert done.stdout == "one\ntwo\n"
    assert client.asked[0] == ("file:///a.txt", {"server": "w", "timeout": None})


def test_bytes_of_a_resource_are_written_unchanged(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.contents = [{"uri": "x", "mimeType": "image/png", "blob": "AP8K"}]
    assert run("resource", "x").stdout_bytes == b"\x00\xff\n"
    file = tmp_path / "x.png"
    done = run("resource", "x", "--output", str(file))
    assert (done.exit_code, done.stdout) == (0, "")
    assert file.read_bytes() == b"\x00\xff\n"


def test_text_is_written_to_a_file_without_a_newline(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.contents = [{"uri": "x", "text": "é"}]
    file = tmp_path / "x.txt"
    assert run("resource", "x", "--output", str(file)).exit_code == 0
    assert file.read_bytes() == "é".encode()


def test_several_parts_cannot_be_written_to_one_file(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.contents = [{"uri": "x", "text": "a"}, {"uri": "y", "text": "b"}]
    done = run("resource", "x", "--output", str(tmp_path / "x"))
    assert done.exit_code == 1
    assert "2 parts" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_file_that_cannot_be_written_is_an_error(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.contents = [{"uri": "x", "text": "a"}]
    done = run("resource", "x", "--output", str(tmp_path / "no" / "x"))
    assert done.exit_code == 1
    assert "can't be written: No such file or directory." in done.stderr


def test_control_characters_of_a_server_are_escaped(
    run: Run, client: _Client, tmp_path: Path
) -> None:
    client.contents = [{"uri": "x", "text": "a\x1b[2Jb\nc"}]
    client.prompt = {
        "messages": [{"role": "us\x1ber", "content": {"type": "text", "text": "\x9b2J"}}]
    }
    assert run("resource", "x").stdout == "a\\x1b[2Jb\nc\n"
    assert run("prompt", "w_ask").stdout == "us\\x1ber: \\x9b2J\n"
    file = tmp_path / "x.txt"
    run("resource", "x", "--output", str(file))
    assert file.read_bytes() == b"a\x1b[2Jb\nc", "with --output as it is"

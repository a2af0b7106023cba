"""No command prints control characters that servers or files contain."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import types
import typing
from collections.abc import Callable, Generator, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import click
import pytest
from click.testing import Result
from rich.console import Console
from tests.cli.fakes import FakeClient, install_client

from leaseway.cli.app import COMMANDS, cli
from leaseway.cli.commands.operating import watch as watching
from leaseway.cli.commands.operating.top import TrafficView
from leaseway.identity.keys import add_key, make_key
from leaseway.identity.principal import Role
from leaseway.sdk import AsyncClient, LeasewayError, ServerError, ToolResult
from leaseway.sdk.calls.results import McpResult
from leaseway.sdk.catalog.tools import CatalogList, ToolList
from leaseway.sdk.operators import observe
from leaseway.wire.messages.states import ServerState

Run = Callable[..., Result]

POISON = "a\x1b[2J\x1b]8;;http://evil\x07link\x1b]8;;\x1b\\\x9b2J\x85\x07\u202eb\u2066c\rd\x7f"
STEERING = re.compile(
    r"\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ITEM = {"type": "text", "text": POISON, "uri": POISON, "mimeType": POISON, POISON: POISON}
PAYLOAD = json.dumps(
    {
        "content": [ITEM, {**ITEM, "type": "resource_link"}, {**ITEM, "type": POISON}],
        "messages": [{"role": POISON, "content": ITEM}],
        "contents": [{**ITEM, "text": POISON}, {"uri": POISON, "mimeType": POISON, "blob": "aa=="}],
        "description": POISON,
    }
).encode()


_FIXED: dict[Any, Any] = {
    datetime: NOW,
    ServerState: ServerState.FAILED,
    type(None): None,
}
"""Types without text."""


def poisoned(kind: Any) -> Any:
    """Return a value of a type, with poison for every text."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is str or kind is Any:
        return POISON
    if origin in (typing.Union, types.UnionType):
        return poisoned(next(each_kind for each_kind in inner if each_kind is not type(None)))
    if origin is typing.Literal:
        return inner[0]
    if origin is tuple and (len(inner) != 2 or inner[1] is not ...):
        return tuple(map(poisoned, inner))
    if origin is not None and issubclass(origin, Mapping):
        return {poisoned(inner[0]): poisoned(inner[1])}
    if origin is not None:
        return (poisoned(inner[0]),) if origin is tuple else [poisoned(inner[0])]
    if isinstance(kind, type) and issubclass(kind, McpResult):
        return kind(PAYLOAD)
    if isinstance(kind, type) and issubclass(kind, CatalogList):
        (base,) = kind.__orig_bases__  # type: ignore[attr-defined]
        more = [NOW] if kind is ToolList else []
        return kind([poisoned(typing.get_args(base)[0])], 9, (POISON,), *more)
    if kind in _FIXED:
        return _FIXED[kind]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(
            **{field.name: poisoned(hints[field.name]) for field in dataclasses.fields(kind)}
        )
    return kind(1)


class PoisonedArtifact:
    """An artifact whose MIME type is poison."""

    mime_type = POISON

    def __init__(self, error: LeasewayError | None) -> None:
        self._error = error

    def __await__(self) -> Generator[Any, None, bytes]:
        yield from ()
        if self._error is not None:
            raise self._error
        return b""


class PoisonedClient(FakeClient):
    """Returns poison in every response, according to the types of the SDK's client.

    Attributes:
        error: The error to raise instead.
        max_requests: After this number of equal requests the command is interrupted.
    """

    error: LeasewayError | None = None
    max_requests = 100

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}

    def session(self, key: str) -> Self:
        return self

    def read_artifact(self, _ref: str, **_: Any) -> PoisonedArtifact:
        return PoisonedArtifact(self.error)

    def __getattr__(self, name: str) -> Any:
        returned = typing.get_type_hints(getattr(AsyncClient, name))["return"]
        if name == "call_tool":
            returned = ToolResult  # where its caller asks for no other type

        async def answer(*_words: Any, **heard: Any) -> Any:
            self._asked[name] = self._asked.get(name, 0) + 1
            if self._asked[name] > self.max_requests:
                raise KeyboardInterrupt
            if self.error is not None:
                raise self.error
            if heard.get("on_progress"):
                heard["on_progress"](1.0, 3.0, POISON)
            if heard.get("on_log"):
                heard["on_log"]("info", POISON, {POISON: POISON})
            return poisoned(returned)

        return answer


def _patched(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make one of the `observe` functions return poison."""
    returned = typing.get_type_hints(getattr(observe, name))["return"]
    if typing.get_origin(returned) is not None and re.search("Iterator|Generator", str(returned)):

        async def follow(*_: Any, **__: Any) -> Any:
            yield poisoned(typing.get_args(returned)[0])

        monkeypatch.setattr(observe, name, follow)
        return

    async def fetch(*_: Any, **__: Any) -> Any:
        return poisoned(returned)

    monkeypatch.setattr(observe, name, fetch)


_FILES = "prints what files hold"
_OWN = "prints nothing that others wrote"
_PROCESSES = "its log is rendered by `leaseway.telemetry.logs`; `up` renders what its children say"
ASKING: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "worker drain": (("w1",),),
    "wait": (("--timeout", "0.05"), ("--timeout", "0.05", "--strict")),
    "status": ((),),
    "top": (("--count", "1"),),
    "events": ((), ("--follow",)),
    "trace": (("--slow",), ("--last",), ("x",)),
    "dump": (("--output", "PATH"),),
    "servers": ((), ("--instances",)),
    "tools": ((),),
    "call": (("t",), ("t", "--session", "s", "--progress", "--server-log", "info")),
    "prompts": ((),),
    "prompt": (("p",), ("p", "--session", "s")),
    "resources": ((),),
    "resource": (("r:x",), ("r:x", "--session", "s")),
    "artifact": (("ref", "--session", "s", "--output", "PATH"),),
    "leases": ((), ("--watch",)),
    "lease revoke": (("l1",), ("--server", "x", "--session", "s")),
    "workers": ((),),
    "tenants": ((),),
    "problems": ((), ("--watch",)),
    "approvals": ((),),
    "approvals list": ((), ("--all",)),
    "approvals show": (("a1",), ("a1", "--json")),
    "approvals approve": (("a1",),),
    "approvals deny": (("a1",),),
    "logs": (("x",),),
    "version": ((),),
}
"""The words after each command that asks a running system."""
OTHERS: Mapping[str, str] = {
    "up": _PROCESSES,
    "control-plane": _PROCESSES,
    "worker": _PROCESSES,
    "mcp": _PROCESSES,
    "mcp-front": _PROCESSES,
    "runbook": _OWN,
    "check": _FILES,
    "config": _FILES,
    "diff": _FILES,
    "import": _FILES,
    "new server": _OWN,
    "key create": _OWN,
    "key list": _FILES,
    "key revoke": _OWN,
    "audit verify": _FILES,
    "audit query": _FILES,
    "audit tail": _FILES,
    "login": _OWN,
    "logins": _OWN,
    "logout": _OWN,
    "vault set": _OWN,
    "vault list": _OWN,
    "vault rm": _OWN,
    "vault rotate": _OWN,
    "completion": _OWN,
}
"""The commands that make no requests."""


def _leaves() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {kind}", inner) for kind, inner in command.commands.items())


LEAVES = dict(_leaves())


def clean(result: Result) -> str:
    """Return the output of a command, after a check for control characters."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    for text in (result.stdout, result.stderr):
        found = STEERING.search(text)
        assert found is None, f"{found!r} in {text!r}"
    assert "Error: " not in result.stderr, result.stderr
    return result.stdout + result.stderr


def test_every_command_is_tested() -> None:
    assert set(ASKING) | set(OTHERS) == set(LEAVES)


CASES = [
    (name, words, form)
    for name, rows in ASKING.items()
    for words in rows
    for form in ("text", "json", "error")
    if form != "json" or any("--json" in parameter.opts for parameter in LEAVES[name].params)
]


@pytest.mark.parametrize(("name", "words", "form"), CASES, ids=str)
def test_output_of_client_commands_has_no_control_characters(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    words: tuple[str, ...],
    form: str,
) -> None:
    client = install_client(monkeypatch, PoisonedClient())
    for each_word in ("fetch_events", "follow_events", "fetch_calls", "fetch_traffic"):
        _patched(each_word, monkeypatch)
    monkeypatch.setattr(watching, "_POLL", 0.0)
    if "--watch" in words:
        client.max_requests = 3
    if form == "error":
        client.error = ServerError(f"It failed: {POISON}\nSecond {POISON}")
    given = [str(tmp_path / word) if word == "PATH" else word for word in words]
    result = run(*name.split(), *given, *(["--json"] if form == "json" else []))
    clean(result)


def test_the_screen_of_top_has_no_control_characters() -> None:
    view = TrafficView("calls", 1.0, 1, 10)
    view._take(poisoned(observe.TrafficReport))
    screen = io.StringIO()
    Console(file=screen, width=400, color_system=None).print(view._render())
    text = screen.getvalue()
    assert "no response from" in text
    assert STEERING.search(text) is None


def test_output_of_file_commands_has_no_control_characters(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_client(monkeypatch, PoisonedClient())
    config = tmp_path / "mcp.yaml"
    server = {"transport": "stdio", "command": POISON, "args": [POISON], POISON: POISON}
    config.write_text(json.dumps({"servers": {"a": server, POISON: server}, POISON: 1}))
    client_file = tmp_path / "client.json"
    client_file.write_text(json.dumps({"mcpServers": {"a": server, POISON: server}}))
    document = tmp_path / "api.json"
    operation = {"operationId": POISON, "summary": POISON, "requestBody": {"content": {POISON: {}}}}
    api = {
        "openapi": "3.0.0",
        "info": {"title": POISON, "version": POISON},
        "servers": [{"url": "http://h"}],
        "paths": {f"/{POISON}": {"post": operation, "get": {"responses": {}}}},
    }
    document.write_text(json.dumps(api))
    keys = tmp_path / "keys.json"
    add_key(keys, make_key(roles=[Role.CALLER], tenant="acme", agent=None, note="n", now=0.0)[1])
    keys.write_text(keys.read_text().replace('"n"', json.dumps(POISON)))
    folder = tmp_path / "audit"
    folder.mkdir()
    record = {"event": "call", "run": POISON, "call": 1, "time": POISON, "tool": POISON}
    (folder / "run.1.jsonl").write_text(json.dumps(record) + "\n" + POISON + "\n")
    rows: Mapping[str, list[tuple[str, ...]]] = {
        "check": [(str(config),), (str(config), "--json"), (str(document),)],
        "config": [("--config", str(config)), ("--config", str(config), "--json")],
        "diff": [(str(config),), (str(config), "--json")],
        "import": [(str(client_file),), ("openapi", str(document))],
        "key list": [("--keys", str(keys)), ("--keys", str(keys), "--json")],
        "audit verify": [(str(folder),), (str(folder), "--json")],
        "audit query": [(str(folder),), (str(folder), "--json")],
        "audit tail": [(str(folder),)],
    }
    assert set(rows) == {name for name, why in OTHERS.items() if why == _FILES}
    for name, cases in rows.items():
        for words in cases:
            text = clean(run(*name.split(), *words))
            assert text, f"{name} printed nothing"

"""Commands that ask a running system, against a client that answers from memory."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import pytest
from click.testing import Result

from leaseway.cli import connection as connection_module
from leaseway.cli.options import Connection
from leaseway.sdk import (
    ControlPlaneUnavailable,
    InstanceLog,
    InvalidArguments,
    LeaseInfo,
    LeasewayError,
    ProblemInfo,
    ServerInfo,
    Status,
    Tool,
    ToolList,
    ToolNotFound,
    ToolResult,
    Unauthenticated,
    Violation,
    WorkerInfo,
)
from leaseway.wire import bounds

Run = Callable[..., Result]

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TOOL = Tool("time_now", "time", "now", "", "Tells the time.\nIn zones.", {}, None, {}, {}, True)
SERVER = ServerInfo(
    "time", "", "ready", "stdio", True, 1, "", "", "2025-11-25", "l1", "e1", ("w1", "w2"), ()
)
LEASE = LeaseInfo("i-1", "time", "w1", "default", "s1", "", 60.0, 3.5, "n1", "l1")
WORKER = WorkerInfo("w1", "i", "127.0.0.1:1", "connected", 512, 1, 2, 9, 9, "", "p/1", {})
PROBLEM = ProblemInfo("server", "time", "", "w1", "EXITED", "It ended.", "error", 2, NOW, NOW)
LOG = InstanceLog("w1", "n1", "running", 42, ("first", "second"))


def _status(**changes: Any) -> Status:
    facts: dict[str, Any] = {
        "ready": True,
        "registry_version": 9,
        "config_loaded_at": NOW,
        "pending": (),
        "workers": 1,
        "package_version": "leaseway-python/9.9",
        "protocol_version": 1,
        "epoch": 1,
        "settling": False,
    }
    return Status(**(facts | changes))


class _Client:
    """Answers as told and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.error: LeasewayError | None = None
        self.payload = b'{"content": [{"type": "text", "text": "noon"}]}'
        self.is_error = False
        self.statuses = [_status()]
        self.listed: dict[str, list[Any]] = {
            "servers": [SERVER],
            "leases": [LEASE],
            "workers": [WORKER],
            "problems": [PROBLEM],
        }
        self.pending: tuple[str, ...] = ()
        self.closed = False
        self.made_for: Connection | None = None
        self.agent = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed = True

    def _answer(self, *question: Any) -> None:
        self.asked.append(question)
        if self.error is not None:
            raise self.error

    async def servers(self) -> list[Any]:
        self._answer("servers")
        return self.listed["servers"]

    async def leases(self) -> list[Any]:
        self._answer("leases")
        return self.listed["leases"]

    async def workers(self) -> list[Any]:
        self._answer("workers")
        return self.listed["workers"]

    async def problems(self) -> list[Any]:
        self._answer("problems")
        return self.listed["problems"]

    async def logs(self, server: str, lines: int) -> list[InstanceLog]:
        self._answer("logs", server, lines)
        return [LOG]

    async def status(self) -> Status:
        self._answer("status")
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    async def list_tools(self, servers: list[str] | None = None) -> ToolList:
        self._answer("list_tools", servers)
        return ToolList([TOOL], 9, self.pending, NOW)

    async def call_tool(
        self, name: str, arguments: Any, *, timeout: float | None, **heard: Any
    ) -> ToolResult:
        self._answer("call_tool", name, arguments, timeout)
        if "on_progress" in heard:
            heard["on_progress"](1.0, 3.0, "half\x1b[2J way")
            heard["on_progress"](2.5, None, None)
        if "on_log" in heard:
            heard["on_log"](heard["log_level"], "db", {"slow": True})
        return ToolResult(self.payload, self.is_error)

    def session(self, key: str) -> Self:
        self.asked.append(("session", key))
        return self


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> _Client:
    made = _Client()

    def connect(connection: Connection, agent: str = "") -> _Client:
        made.made_for, made.agent = connection, agent
        return made

    monkeypatch.setattr(connection_module, "connect", connect)
    return made


@pytest.mark.parametrize("command", ["servers", "leases", "workers", "problems"])
def test_each_listing_prints_a_row_an_item(run: Run, client: _Client, command: str) -> None:
    done = run(command)
    assert done.exit_code == 0
    header, row = done.stdout.splitlines()
    assert header == header.upper()
    assert "w1" in row


@pytest.mark.parametrize(
    ("command", "item"),
    [
        ("servers", {"id": "time", "state": "ready", "workers": ["w1", "w2"]}),
        ("leases", {"id": "i-1", "session": "s1", "ttl": 60.0}),
        ("workers", {"id": "w1", "capacity": 512}),
        ("problems", {"reason": "EXITED", "last_seen": NOW.isoformat()}),
    ],
)
def test_each_listing_gives_programs_an_array(
    run: Run, client: _Client, command: str, item: dict[str, Any]
) -> None:
    [listed] = json.loads(run(command, "--json").stdout)
    assert listed.items() >= item.items()


@pytest.mark.parametrize("command", ["servers", "leases", "workers", "problems"])
def test_an_empty_listing_is_an_empty_array_or_a_sentence(
    run: Run, client: _Client, command: str
) -> None:
    client.listed[command] = []
    assert json.loads(run(command, "--json").stdout) == []
    done = run(command)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("No ")


def test_tools_are_listed_with_both_names_and_their_first_line(run: Run, client: _Client) -> None:
    client.listed["servers"] = [SERVER, dataclasses.replace(SERVER, id="git")]
    done = run("tools", "time", "git")
    assert client.asked == [("list_tools", ["time", "git"]), ("servers",)]  # git has no tools
    assert done.stdout.splitlines()[1].split(maxsplit=3) == [
        "time_now",
        "time:now",
        "shared",
        "Tells the time.",
    ]


def test_tools_for_programs_carry_their_schemas(run: Run, client: _Client) -> None:
    [tool] = json.loads(run("tools", "--json").stdout)
    assert tool["qualified_name"] == "time:now"
    assert tool["input_schema"] == {}
    assert tool["output_schema"] is None
    assert client.asked == [("list_tools", None)]


def test_servers_that_still_start_are_named_on_stderr(run: Run, client: _Client) -> None:
    client.pending = ("slow",)
    done = run("tools", "--json")
    assert json.loads(done.stdout)
    assert done.stderr == "leaseway: Still starting: slow.\n"


def test_a_call_prints_the_text_of_its_result(run: Run, client: _Client) -> None:
    done = run("call", "time_now", "zone=UTC", "n=2", "--timeout", "5", "--agent", "me")
    assert (done.exit_code, done.stdout) == (0, "noon\n")
    assert client.asked == [("call_tool", "time_now", {"zone": "UTC", "n": 2}, 5.0)]
    assert client.agent == "me"
    assert client.closed


def test_progress_and_the_servers_logs_go_to_stderr_as_plain_lines(
    run: Run, client: _Client
) -> None:
    done = run("call", "t", "--progress", "--server-log", "warning")
    assert done.stdout == "noon\n"
    assert done.stderr.splitlines() == [
        "leaseway: Progress 1/3: half [2J way",
        "leaseway: Progress 2.5",
        'leaseway: The server logs warning: db: {"slow": true}',
    ]
    assert not run("call", "t").stderr  # no terminal, nothing asked for
    assert run("call", "t", "--server-log", "loud").exit_code == 2


def test_a_call_reads_its_arguments_from_stdin(run: Run, client: _Client) -> None:
    run("call", "time_now", "-", input='{"zone": "UTC"}')
    assert client.asked == [("call_tool", "time_now", {"zone": "UTC"}, None)]


def test_stdin_is_read_up_to_the_bound_of_arguments(run: Run, client: _Client) -> None:
    frame = len('{"k": ""}')
    done = run("call", "t", "-", input='{"k": "' + "x" * (bounds.MAX_ARGUMENTS - frame) + '"}')
    assert done.exit_code == 0
    done = run("call", "t", "-", input='{"k": "' + "x" * (bounds.MAX_ARGUMENTS - frame + 1) + '"}')
    assert done.exit_code == 2
    assert str(bounds.MAX_ARGUMENTS) in done.stderr


def test_a_misspelled_option_is_no_argument(run: Run, client: _Client) -> None:
    done = run("call", "t", "--timeot=5")
    assert done.exit_code == 2
    assert "--timeout" in done.stderr


def test_a_negative_number_is_a_value_and_no_option(run: Run, client: _Client) -> None:
    run("call", "t", "n=-3")
    assert client.asked == [("call_tool", "t", {"n": -3}, None)]


def test_a_call_in_a_session_leaves_its_lease(run: Run, client: _Client) -> None:
    done = run("call", "time_now", "--session", "dialog-42")
    assert done.exit_code == 0
    assert client.asked[0] == ("session", "dialog-42")
    assert not client.closed


def test_the_raw_result_is_json_with_unknown_members(run: Run, client: _Client) -> None:
    client.payload = b'{"content": [], "novel": {"x": 1}}'
    assert json.loads(run("call", "t", "--json").stdout) == {"content": [], "novel": {"x": 1}}


def test_a_tool_that_says_it_failed_gives_exit_status_1(run: Run, client: _Client) -> None:
    client.is_error = True
    done = run("call", "time_now")
    assert (done.exit_code, done.stdout) == (1, "noon\n")
    assert done.stderr == "leaseway: The tool says that it failed.\n"


def test_other_content_is_a_note_on_stderr(run: Run, client: _Client) -> None:
    client.payload = (
        b'{"content": [{"type": "image", "mimeType": "image/png", "data": "AAAA"},'
        b' {"type": "resource", "resource": {"uri": "file:///a"}}]}'
    )
    done = run("call", "t")
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "[image image/png 3 bytes; --output PATH saves it]",
        "[resource file:///a; --json prints it]",
    ]


def test_a_structured_result_without_content_is_printed(run: Run, client: _Client) -> None:
    client.payload = b'{"content": [], "structuredContent": {"n": 1}}'
    assert json.loads(run("call", "t").stdout) == {"n": 1}


@pytest.mark.parametrize("words", [["loose"], ["{1}"], ["a=1", "a=2"], ["--timeout", "0"]])
def test_arguments_that_make_no_sense_are_usage_errors(
    run: Run, client: _Client, words: list[str]
) -> None:
    done = run("call", "t", *words)
    assert done.exit_code == 2
    assert done.stderr.startswith("leaseway: ")
    assert client.asked == []


def test_rejected_arguments_name_each_violation(run: Run, client: _Client) -> None:
    client.error = InvalidArguments(
        "They do not fit.", violations=[Violation("a.b", "must be text"), Violation("", "lacks c")]
    )
    done = run("call", "t")
    assert done.exit_code == 1
    assert done.stderr == "leaseway: They do not fit. a.b: must be text; arguments: lacks c.\n"


def test_a_refusal_is_exit_status_1_and_its_sentence(run: Run, client: _Client) -> None:
    client.error = ToolNotFound("There is no tool 'x'. Nearest: time_now.")
    done = run("call", "x")
    assert done.exit_code == 1
    assert done.stderr == "leaseway: There is no tool 'x'. Nearest: time_now.\n"


@pytest.mark.parametrize(
    "words", [["servers"], ["tools"], ["call", "t"], ["leases"], ["workers"], ["problems"]]
)
def test_an_unreachable_control_plane_is_exit_status_3(
    run: Run, client: _Client, words: list[str]
) -> None:
    client.error = ControlPlaneUnavailable("Nobody is there.")
    done = run(*words)
    assert done.exit_code == 3
    assert done.stderr == "leaseway: Nobody is there.\n"


def test_logs_are_printed_instance_by_instance(run: Run, client: _Client) -> None:
    done = run("logs", "time", "--lines", "7")
    assert client.asked == [("logs", "time", 7)]
    assert done.stdout.splitlines() == ["== n1 on w1 (running, pid 42)", "first", "second"]


def test_wait_polls_until_ready(run: Run, client: _Client) -> None:
    client.statuses = [_status(ready=False, pending=("a",)), _status()]
    done = run("--address", "127.0.0.1:9", "wait")
    assert (done.exit_code, done.stdout) == (0, "ready 127.0.0.1:9\n")
    assert len(client.asked) == 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pending": ("a", "b")}, "still starting: a, b"),
        ({"workers": 0}, "no worker is connected"),
        ({}, "leaseway problems"),
    ],
)
def test_wait_says_what_it_waited_for(
    run: Run, client: _Client, changes: dict[str, Any], why: str
) -> None:
    client.statuses = [_status(ready=False, **changes)]
    done = run("wait", "--timeout", "0.05")
    assert done.exit_code == 1
    assert why in done.stderr


def test_wait_for_nobody_is_exit_status_3(run: Run, client: _Client) -> None:
    client.error = ControlPlaneUnavailable("Nobody.")
    done = run("wait", "--timeout", "0.05")
    assert done.exit_code == 3
    assert "No control plane answered" in done.stderr


def test_version_tells_of_both_sides(run: Run, client: _Client) -> None:
    facts = json.loads(run("version", "--json").stdout)
    assert facts["control_plane"]["package_version"] == "leaseway-python/9.9"
    assert facts["protocol_version"] == 1


def test_version_needs_no_control_plane(run: Run, client: _Client) -> None:
    client.error = ControlPlaneUnavailable("Nobody.")
    done = run("version")
    assert done.exit_code == 0
    assert "no control plane at 127.0.0.1:7600" in done.stdout
    assert json.loads(run("version", "--json").stdout)["control_plane"] is None


def test_version_says_so_where_a_control_plane_answers_and_the_key_is_missing(
    run: Run, client: _Client
) -> None:
    client.error = Unauthenticated("This address wants a key.")
    done = run("version")
    assert done.exit_code == 0
    assert "control plane at 127.0.0.1:7600: This address wants a key." in done.stdout
    facts = json.loads(run("version", "--json").stdout)
    assert facts["control_plane"]["error"] == "This address wants a key."


@pytest.mark.parametrize("words", [("tools", "tmie"), ("logs", "tmie")])
def test_a_server_that_is_not_there_is_named_with_the_nearest_ones(
    run: Run, client: _Client, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    async def nothing(server: str, lines: int) -> list[InstanceLog]:
        return []

    monkeypatch.setattr(client, "logs", nothing)
    client.listed["servers"] = [dataclasses.replace(SERVER, id="time")]
    done = run(*words)
    assert done.exit_code == 1
    assert done.stderr == "leaseway: There is no server 'tmie'. Did you mean time?\n"
    client.listed["servers"] = [dataclasses.replace(SERVER, id="tmie")]  # it has said nothing
    assert run(*words).exit_code == 0


def test_the_address_comes_from_the_option_the_variable_or_the_default(
    run: Run, client: _Client
) -> None:
    def asked(*words: str, **environment: str) -> str:
        run(*words, env=environment)
        assert client.made_for is not None
        return str(client.made_for.address)

    assert asked("servers") == "127.0.0.1:7600"
    assert asked("servers", LEASEWAY_ADDRESS="127.0.0.1:1") == "127.0.0.1:1"
    assert asked("--address", "127.0.0.1:2", "servers", LEASEWAY_ADDRESS="h:1") == "127.0.0.1:2"
    assert asked("--address", "h:2", "servers", "--address", "127.0.0.1:3") == "127.0.0.1:3"


def test_the_tenant_can_be_given_before_or_after_the_command(run: Run, client: _Client) -> None:
    run("servers")
    assert client.made_for is not None
    assert client.made_for.tenant == "default"
    run("--tenant", "acme", "servers")
    assert client.made_for.tenant == "acme"
    run("servers", "--tenant", "other")
    assert client.made_for.tenant == "other"


def test_an_unusable_key_is_a_usage_error(run: Run) -> None:
    done = run("servers", env={"LEASEWAY_KEY": "two words"})
    assert done.exit_code == 2
    assert "LEASEWAY_KEY" in done.stderr
    assert "two words" not in done.stderr

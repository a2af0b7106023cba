"""Commands that connect to a system, with a fake client."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from tests.cli.memory import NOW, PROBLEM, SERVER, MemoryClient, answering, status_with
from tests.conftest import BOUND

from leaseway.sdk import (
    ControlPlaneUnavailable,
    InstanceLog,
    Tool,
    Unauthenticated,
)
from leaseway.wire.messages.states import ServerState

Run = Callable[..., Result]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> MemoryClient:
    return answering(monkeypatch)


@pytest.mark.parametrize("command", ["servers", "leases", "workers", "tenants", "problems"])
def test_each_listing_prints_a_row_per_item(run: Run, client: MemoryClient, command: str) -> None:
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
        ("tenants", {"tenant": "acme", "remaining": 12, "renews_in": 7.25}),
        ("problems", {"reason": "EXITED", "last_seen": NOW.isoformat()}),
    ],
)
def test_each_listing_prints_a_json_array(
    run: Run, client: MemoryClient, command: str, item: dict[str, Any]
) -> None:
    [listed] = json.loads(run(command, "--json").stdout)
    assert listed.items() >= item.items()


@pytest.mark.parametrize("command", ["servers", "leases", "workers", "tenants", "problems"])
def test_an_empty_listing_is_an_empty_array_or_a_sentence(
    run: Run, client: MemoryClient, command: str
) -> None:
    client.listed[command] = []
    assert json.loads(run(command, "--json").stdout) == []
    done = run(command)
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr.startswith("No ")


def test_tools_are_listed_with_both_names_and_their_first_line(
    run: Run, client: MemoryClient
) -> None:
    client.listed["servers"] = [SERVER, dataclasses.replace(SERVER, id="git")]
    done = run("tools", "time", "git")
    assert client.asked == [("list_tools", ["time", "git"]), ("servers",)]  # git has no tools
    assert done.stdout.splitlines()[1].split(maxsplit=3) == [
        "time_now",
        "time:now",
        "shared",
        "Tells the time.",
    ]


def test_tools_as_json_have_all_fields(run: Run, client: MemoryClient) -> None:
    [tool] = json.loads(run("tools", "--json").stdout)
    names = {field.name for field in dataclasses.fields(Tool)}
    assert tool.keys() == names | {"qualified_name"}
    assert tool["qualified_name"] == "time:now"
    assert tool["input_schema"] == {}
    assert tool["output_schema"] is None
    assert client.asked == [("list_tools", None)]


def test_only_the_named_servers_are_listed(run: Run, client: MemoryClient) -> None:
    client.listed["servers"] = [SERVER, dataclasses.replace(SERVER, id="git")]
    assert [server["id"] for server in json.loads(run("servers", "git", "--json").stdout)] == [
        "git"
    ]
    unknown = run("servers", "gti")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert unknown.stderr == "leaseway: There is no server 'gti'. Did you mean git or time?\n"


def test_servers_that_still_start_are_listed_on_stderr(run: Run, client: MemoryClient) -> None:
    client.pending = ("slow",)
    done = run("tools", "--json")
    assert json.loads(done.stdout)
    assert done.stderr == "leaseway: Still starting: slow.\n"


@pytest.mark.parametrize(
    "words", [["servers"], ["tools"], ["call", "t"], ["leases"], ["workers"], ["problems"]]
)
def test_an_unreachable_control_plane_is_exit_status_3(
    run: Run, client: MemoryClient, words: list[str]
) -> None:
    client.error = ControlPlaneUnavailable("Nobody is there.")
    done = run(*words)
    assert done.exit_code == 3
    assert done.stderr == "leaseway: Nobody is there.\n"


def test_an_unreachable_control_plane_prints_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leaseway.cli.main", "--address", "127.0.0.1:1", "tools"],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("leaseway: The control plane at 127.0.0.1:1 cannot be reached.")
    assert "Connection refused" in done.stderr  # so the cause is not its name or certificate
    assert done.stderr.count("\n") == 1


def test_an_unusable_certificate_file_is_wrong_usage(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leaseway.cli.main", "tools"],
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
        env={**os.environ, "LEASEWAY_TLS_CA": str(tmp_path / "none.pem")},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == f"leaseway: {tmp_path}/none.pem cannot be read: No such file or directory.\n"
    )


def test_logs_are_printed_instance_by_instance(run: Run, client: MemoryClient) -> None:
    done = run("logs", "time", "--lines", "7")
    assert client.asked == [("logs", "time", 7)]
    assert done.stdout.splitlines() == ["== n1 on w1 (running, pid 42)", "first", "second"]


def test_control_characters_in_stderr_of_a_server_are_escaped(
    run: Run, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steering(*_: object) -> list[InstanceLog]:
        return [
            InstanceLog(
                worker="w1",
                instance_id="n1",
                state="running",
                pid=42,
                lines=("a\x1b]0;title\x07b",),
            )
        ]

    monkeypatch.setattr(client, "logs", steering)
    assert run("logs", "time").stdout.splitlines()[1] == r"a\x1b]0;title\x07b"


def test_wait_polls_until_ready(run: Run, client: MemoryClient) -> None:
    client.statuses = [status_with(ready=False, pending=("a",)), status_with()]
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
def test_wait_reports_why_the_system_is_not_ready(
    run: Run, client: MemoryClient, changes: dict[str, Any], why: str
) -> None:
    client.statuses = [status_with(ready=False, **changes)]
    done = run("wait", "--timeout", "0.05")
    assert done.exit_code == 1
    assert why in done.stderr


@pytest.mark.parametrize("words", [["--server", "time"], ["--strict"]])
def test_wait_for_servers_continues_until_they_are_up(
    run: Run, client: MemoryClient, words: list[str]
) -> None:
    client.statuses = [status_with(servers=2, servers_up=1)]
    done = run("wait", *words, "--timeout", "30")
    assert (done.exit_code, done.stdout.split()[0]) == (0, "ready")
    assert "1 of 2 servers up (leaseway problems)" in done.stderr
    client.listed["servers"] = [dataclasses.replace(SERVER, state=ServerState.FAILING)]
    done = run("wait", *words, "--timeout", "0.2")
    assert done.exit_code == 1
    assert "not up: time; see: leaseway problems" in done.stderr


def test_wait_without_a_control_plane_is_exit_status_3(run: Run, client: MemoryClient) -> None:
    client.error = ControlPlaneUnavailable("Nobody.")
    done = run("wait", "--timeout", "0.05")
    assert done.exit_code == 3
    assert "No control plane responded" in done.stderr


def test_version_prints_both_versions(run: Run, client: MemoryClient) -> None:
    facts = json.loads(run("version", "--json").stdout)
    assert facts["control_plane"]["package_version"] == "leaseway-python/9.9"
    assert facts["protocol_version"] == 1


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("", "9.9 (protocol 1)\n"),
        ("memory", ", approvals are kept in memory, and end with it (--data keeps them)\n"),
        ("sqlite", ", approvals are kept in a file\n"),
    ],
)
def test_version_says_where_approvals_are_kept(
    run: Run, client: MemoryClient, store: str, said: str
) -> None:
    client.statuses = [status_with(store=store)]
    assert run("version").stdout.endswith(said)


def test_version_needs_no_control_plane(run: Run, client: MemoryClient) -> None:
    client.error = ControlPlaneUnavailable("Nobody.")
    done = run("version")
    assert done.exit_code == 0
    assert "no control plane at 127.0.0.1:7600" in done.stdout
    assert json.loads(run("version", "--json").stdout)["control_plane"] is None


def test_version_prints_the_error_of_a_missing_key(run: Run, client: MemoryClient) -> None:
    client.error = Unauthenticated("This address wants a key.")
    done = run("version")
    assert done.exit_code == 0
    assert "control plane at 127.0.0.1:7600: This address wants a key." in done.stdout
    facts = json.loads(run("version", "--json").stdout)
    assert facts["control_plane"]["error"] == "This address wants a key."


@pytest.mark.parametrize("words", [("tools", "tmie"), ("logs", "tmie")])
def test_an_unknown_server_is_an_error_with_similar_ids(
    run: Run, client: MemoryClient, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    async def nothing(server: str, lines: int) -> list[InstanceLog]:
        return []

    monkeypatch.setattr(client, "logs", nothing)
    client.listed["servers"] = [dataclasses.replace(SERVER, id="time")]
    done = run(*words)
    assert done.exit_code == 1
    assert done.stderr == "leaseway: There is no server 'tmie'. Did you mean time?\n"
    client.listed["servers"] = [dataclasses.replace(SERVER, id="tmie")]  # it has written nothing
    assert run(*words).exit_code == 0


def test_the_address_comes_from_the_option_the_variable_or_the_default(
    run: Run, client: MemoryClient
) -> None:
    def asked(*words: str, **environment: str) -> str:
        run(*words, env=environment)
        assert client.made_for is not None
        return str(client.made_for.address)

    assert asked("servers") == "127.0.0.1:7600"
    assert asked("servers", LEASEWAY_ADDRESS="127.0.0.1:1") == "127.0.0.1:1"
    assert asked("--address", "127.0.0.1:2", "servers", LEASEWAY_ADDRESS="h:1") == "127.0.0.1:2"
    assert asked("--address", "h:2", "servers", "--address", "127.0.0.1:3") == "127.0.0.1:3"
    assert asked("servers", LEASEWAY_ADDRESS="h:1, i:2 ") == "h:1,i:2"  # as the SDK reads it


def test_the_tenant_can_be_given_before_or_after_the_command(
    run: Run, client: MemoryClient
) -> None:
    run("servers")
    assert client.made_for is not None
    assert client.made_for.tenant == ""
    run("--tenant", "acme", "servers")
    assert client.made_for.tenant == "acme"
    run("servers", "--tenant", "other")
    assert client.made_for.tenant == "other"


def test_an_unusable_key_is_a_usage_error(run: Run) -> None:
    done = run("servers", env={"LEASEWAY_KEY": "two words"})
    assert done.exit_code == 2
    assert "LEASEWAY_KEY" in done.stderr
    assert "two words" not in done.stderr


def test_status_prints_the_cause_of_a_server_that_is_down_once(
    run: Run, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_events(*_: object, **__: object) -> list[Any]:
        return []

    monkeypatch.setattr("leaseway.sdk.operators.observe.fetch_events", no_events)
    cause = "The server time exited with status 3; it wrote last: no licence."
    down = dataclasses.replace(
        SERVER, state=ServerState.FAILING, problem=f"{cause} Up on 0 of 1 workers."
    )
    client.listed["servers"] = [down]
    client.listed["problems"] = [dataclasses.replace(PROBLEM, message=cause)]
    done = run("status")
    assert done.exit_code == 1
    assert f"time failing: {cause}" in done.stdout
    assert done.stdout.count(cause) == 1
    assert "error EXITED time: see above" in done.stdout


def test_an_operator_without_a_tenant_sees_the_servers_of_all(
    run: Run, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def none(*_: object, **__: object) -> list[Any]:
        return []

    monkeypatch.setattr("leaseway.sdk.operators.observe.fetch_events", none)
    client.listed["servers"], client.of_tenants = [], [SERVER]
    client.listed["problems"] = []
    assert "servers   1 ready" in run("status").stdout
    assert run("wait", "--server", SERVER.id, "--timeout", "5").exit_code == 0
    assert "--tenant '*'" in run("servers").stderr


def test_status_says_what_keeps_approvals(
    run: Run, client: MemoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_events(*_: object, **__: object) -> list[Any]:
        return []

    monkeypatch.setattr("leaseway.sdk.operators.observe.fetch_events", no_events)
    client.statuses = [status_with(store="sqlite")]
    assert "approvals kept in sqlite" in run("status").stdout

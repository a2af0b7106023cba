"""`leaseway call`, with a fake client."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest
from click.testing import Result
from tests.cli.memory import (
    MemoryClient,
    answering,
)

from leaseway.sdk import (
    InvalidArguments,
    ServerError,
    ToolNotFound,
    Violation,
)
from leaseway.wire import bounds
from leaseway.wire.advice import LISTED_BY

Run = Callable[..., Result]


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> MemoryClient:
    return answering(monkeypatch)


def test_a_call_prints_the_text_of_its_result(run: Run, client: MemoryClient) -> None:
    done = run(
        "call", "time_now", "zone=UTC", "n=2", "--timeout", "5", "--agent", "me", "--user", "u"
    )
    assert (done.exit_code, done.stdout) == (0, "noon\n")
    assert client.asked[-1] == ("call_tool", "time_now", {"zone": "UTC", "n": 2}, 5.0)
    assert (client.agent, client.user) == ("me", "u")
    assert client.closed


def test_progress_and_server_logs_are_printed_to_stderr(run: Run, client: MemoryClient) -> None:
    done = run("call", "t", "--progress", "--server-log", "warning")
    assert done.stdout == "noon\n"
    assert done.stderr.splitlines() == [
        "leaseway: Progress 1/3: half [2J way",
        "leaseway: Progress 2.5",
        'leaseway: Server log warning: db: {"slow": true}',
    ]
    assert not run("call", "t").stderr  # no terminal, nothing asked for
    assert run("call", "t", "--server-log", "loud").exit_code == 2


def test_a_wait_of_the_sdk_is_shown_unless_a_level_is_given(run: Run, client: MemoryClient) -> None:
    waits = logging.getLogger("leaseway.sdk.waits")
    waits.setLevel(logging.NOTSET)  # as in a new process
    run("call", "t", "--log-level", "error")
    assert not waits.isEnabledFor(logging.INFO)
    run("call", "t")
    assert waits.isEnabledFor(logging.INFO)


def test_a_call_reads_its_arguments_from_stdin(run: Run, client: MemoryClient) -> None:
    run("call", "time_now", "-", input='{"zone": "UTC"}')
    assert client.asked == [("call_tool", "time_now", {"zone": "UTC"}, None)]


def test_stdin_is_read_up_to_the_bound_of_arguments(run: Run, client: MemoryClient) -> None:
    frame = len('{"k": ""}')
    done = run("call", "t", "-", input='{"k": "' + "x" * (bounds.MAX_ARGUMENTS - frame) + '"}')
    assert done.exit_code == 0
    done = run("call", "t", "-", input='{"k": "' + "x" * (bounds.MAX_ARGUMENTS - frame + 1) + '"}')
    assert done.exit_code == 2
    assert str(bounds.MAX_ARGUMENTS) in done.stderr


def test_a_misspelled_option_is_a_usage_error(run: Run, client: MemoryClient) -> None:
    done = run("call", "t", "--timeot=5")
    assert done.exit_code == 2
    assert "--timeout" in done.stderr


def test_a_negative_number_is_a_value(run: Run, client: MemoryClient) -> None:
    run("call", "t", "n=-3")
    assert client.asked[-1] == ("call_tool", "t", {"n": -3}, None)


def test_a_number_is_a_string_if_the_schema_has_a_string(run: Run, client: MemoryClient) -> None:
    run("call", "t", "zip=01234", "n=7")
    run("call", "t", "zip=7", "n=7")
    asked = [("describe_tool", "t"), ("call_tool", "t", {"zip": "01234", "n": 7}, None)]
    assert client.asked[:2] == asked
    assert client.asked[3] == ("call_tool", "t", {"zip": "7", "n": 7}, None)


def test_the_schema_is_not_fetched_if_all_values_are_strings(
    run: Run, client: MemoryClient
) -> None:
    run("call", "t", "zone=UTC")
    assert client.asked == [("call_tool", "t", {"zone": "UTC"}, None)]


def test_a_call_in_a_session_names_the_session(run: Run, client: MemoryClient) -> None:
    done = run("call", "time_now", "--session", "dialog-42")
    assert done.exit_code == 0
    assert client.asked[0] == ("session", "dialog-42")
    assert client.closed


def test_the_raw_result_is_json_with_unknown_members(run: Run, client: MemoryClient) -> None:
    client.payload = b'{"content": [], "novel": {"x": 1}}'
    assert json.loads(run("call", "t", "--json").stdout) == {"content": [], "novel": {"x": 1}}


def test_an_error_of_the_tool_is_exit_status_1(run: Run, client: MemoryClient) -> None:
    client.is_error = True
    done = run("call", "time_now")
    assert (done.exit_code, done.stdout) == (1, "noon\n")
    assert done.stderr == "leaseway: The tool returned an error.\n"


def test_content_that_is_not_text_is_described_on_stderr(run: Run, client: MemoryClient) -> None:
    client.payload = (
        b'{"content": [{"type": "image", "mimeType": "image/png", "data": "AAAA"},'
        b' {"type": "resource", "resource": {"uri": "file:///a"}},'
        b' {"type": "resource", "resource": {"uri": "file:///b", "text": "one\\ntwo"}}]}'
    )
    done = run("call", "t")
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "[image image/png 3 bytes; --output PATH saves it]",
        "[resource file:///a; --json prints it]",
        "[resource file:///b: one two]",
    ]


def test_invalid_content_is_described_as_unknown(run: Run, client: MemoryClient) -> None:
    client.payload = b'{"content": [null, "x", [{}], {"type": "text", "text": "seen"}]}'
    done = run("call", "t")
    assert (done.exit_code, done.stdout) == (0, "seen\n")
    assert done.stderr == "[unknown; --json prints it]\n" * 3


def test_a_structured_result_without_content_is_printed(run: Run, client: MemoryClient) -> None:
    client.payload = b'{"content": [], "structuredContent": {"n": 1}}'
    assert json.loads(run("call", "t").stdout) == {"n": 1}


@pytest.mark.parametrize("words", [["loose"], ["{1}"], ["a=1", "a=2"], ["--timeout", "0"]])
def test_invalid_arguments_are_usage_errors(
    run: Run, client: MemoryClient, words: list[str]
) -> None:
    done = run("call", "t", *words)
    assert done.exit_code == 2
    assert done.stderr.startswith("leaseway: ")
    assert client.asked == []


def test_rejected_arguments_list_each_violation(run: Run, client: MemoryClient) -> None:
    client.error = InvalidArguments(
        "They do not fit.", violations=[Violation("a.b", "must be text"), Violation("", "lacks c")]
    )
    done = run("call", "t")
    assert done.exit_code == 1
    assert done.stderr == "leaseway: They do not fit. a.b: must be text; arguments: lacks c.\n"


def test_an_error_prints_its_message_with_exit_status_1(run: Run, client: MemoryClient) -> None:
    client.error = ToolNotFound("There is no tool 'x'.", metadata={LISTED_BY: "tools"})
    done = run("call", "x")
    assert done.exit_code == 1
    assert done.stderr == "leaseway: There is no tool 'x'. See `leaseway tools`.\n"


def test_control_characters_in_an_error_are_removed(run: Run, client: MemoryClient) -> None:
    client.error = ServerError("It failed: \x1b]0;title\x07.\nSecond line.")
    assert run("call", "x").stderr == "leaseway: It failed:  ]0;title .\nSecond line.\n"


def test_control_characters_in_a_result_are_escaped(run: Run, client: MemoryClient) -> None:
    result = {"content": [{"type": "text", "text": "a\x1b[2Jb\nc\u202e"}]}
    client.payload = json.dumps(result).encode()
    assert run("call", "t").stdout == "a\\x1b[2Jb\nc\\u202e\n"

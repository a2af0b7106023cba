"""What a server may say of its own accord, and how much of it is passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leaseway.data_plane.core.calls.call import ToolRequest
from leaseway.data_plane.mcp.protocol.messages.codec import decode
from leaseway.data_plane.mcp.protocol.messages.era import LEGACY
from leaseway.data_plane.mcp.protocol.messages.incoming import Inbox
from leaseway.data_plane.mcp.protocol.messages.pending import ToolCall
from leaseway.data_plane.mcp.protocol.messages.server_requests import roots_result
from leaseway.wire.errors import Fault


class Said:
    """A call, and what the server says of it."""

    era = LEGACY

    def __init__(self) -> None:
        self.progress: list[str] = []
        self.logs: list[tuple[str, str, bytes]] = []
        self.answers: list[bytes] = []
        request = ToolRequest(
            "echo",
            b"",
            b"{}",
            on_progress=lambda *report: self.progress.append(report[2]),
            on_log=lambda *log: self.logs.append(log),
            log_level="debug",
        )
        self.call = ToolCall(self, "talker", 1, request, lambda _: None)
        self.inbox = Inbox(
            "talker",
            "stdio",
            self.answers.append,
            lambda _: self.call,
            lambda near, method: "nobody",
            lambda: None,
        )

    def ask_first(self, call: ToolCall, wanted: bytes, otherwise: Fault | None = None) -> None:
        """Nothing is asked here."""

    def lacks_back_channel(self) -> None:
        """Nothing is asked here."""

    def cancel_call(self, call: ToolCall, reason: str) -> None:
        """Nothing is cancelled here."""

    def say(self, what: str, **params: Any) -> None:
        """Have the server say something."""
        message = {"jsonrpc": "2.0", "method": f"notifications/{what}", "params": params}
        self.inbox.take(decode(json.dumps(message).encode()), self.call)


def test_roots_of_permissions_are_told_whatever_callers_answer() -> None:
    said = Said()
    said.inbox.roots = roots_result(["/srv/files", "/a b"])
    question = {"jsonrpc": "2.0", "id": 7, "method": "roots/list"}
    said.inbox.take(decode(json.dumps(question).encode()), None)
    assert json.loads(said.answers[0]) == {
        "jsonrpc": "2.0",
        "id": 7,
        "result": {
            "roots": [
                {"uri": "file:///srv/files", "name": "files"},
                {"uri": "file:///a%20b", "name": "a b"},
            ]
        },
    }


def test_a_long_progress_message_is_cut_to_its_first_4096_characters() -> None:
    said = Said()
    said.say("progress", progressToken=1, progress=1, message="ü" * 8_000_000)
    said.say("progress", progressToken=1, progress=2, message="short")
    assert said.progress == ["ü" * 4096, "short"]


def test_a_long_level_and_logger_are_cut() -> None:
    said = Said()
    said.say("message", level="l" * 1_000_000, logger="n" * 1_000_000, data=1)
    assert said.logs == [("l" * 32, "n" * 256, b"1")]


def test_taking_back_what_has_no_id_is_passed_over_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for odd in ([1], {"id": 1}, None, True):
        Said().say("cancelled", requestId=odd)
    assert caplog.records == []

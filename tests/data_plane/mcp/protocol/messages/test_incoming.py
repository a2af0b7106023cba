"""Requests and notifications of a server, and the limits of what is passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from leaseway.data_plane.core.calls.call import Callbacks, ToolRequest
from leaseway.data_plane.mcp.protocol.messages.era import LEGACY
from leaseway.data_plane.mcp.protocol.messages.incoming import Inbox
from leaseway.data_plane.mcp.protocol.messages.liveness import Refusals
from leaseway.data_plane.mcp.protocol.messages.pending import ToolCall
from leaseway.data_plane.mcp.protocol.messages.reading import read
from leaseway.data_plane.mcp.protocol.messages.server_requests import roots_result
from leaseway.wire.errors import Fault


class Recorder:
    """A call, and the recorded notifications and responses."""

    era = LEGACY
    refusals = Refusals()

    def __init__(self) -> None:
        self.progress: list[str] = []
        self.logs: list[tuple[str, str, bytes]] = []
        self.answers: list[bytes] = []
        request = ToolRequest(
            "echo",
            b"",
            b"{}",
            callbacks=Callbacks(
                on_progress=lambda *report: self.progress.append(report[2]),
                on_log=lambda *log: self.logs.append(log[:3]),
                log_level="debug",
            ),
        )
        self.call = ToolCall(self, "talker", 1, request, lambda _: None)
        self.inbox = Inbox(
            "talker",
            "stdio",
            self.answers.append,
            lambda _: self.call,
            lambda _call, _method: "no call",
            lambda _method: "no call",
            lambda: None,
        )

    def on_tools_changed(self) -> None:
        """Not called."""

    def request_input(self, call: ToolCall, result: bytes, declined: Fault | None = None) -> None:
        """Not called."""

    def log_repair(self, what: str, how: str) -> None:
        """Not called."""

    def warn_no_back_channel(self) -> None:
        """Not called."""

    def cancel_call(self, call: ToolCall, reason: str) -> None:
        """Not called."""

    def notify(self, name: str, **params: Any) -> None:
        """Handle a notification."""
        message = {"jsonrpc": "2.0", "method": f"notifications/{name}", "params": params}
        self.inbox.handle(read(json.dumps(message).encode()), self.call)


def test_roots_requests_are_answered_from_permissions() -> None:
    recorder = Recorder()
    recorder.inbox.roots = roots_result(["/srv/files", "/a b"])
    request = {"jsonrpc": "2.0", "id": 7, "method": "roots/list"}
    recorder.inbox.handle(read(json.dumps(request).encode()), None)
    assert json.loads(recorder.answers[0]) == {
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
    recorder = Recorder()
    recorder.notify("progress", progressToken=1, progress=1, message="ü" * 8_000_000)
    recorder.notify("progress", progressToken=1, progress=2, message="short")
    assert recorder.progress == ["ü" * 4096, "short"]


def test_a_long_level_and_logger_are_cut() -> None:
    recorder = Recorder()
    recorder.notify("message", level="l" * 1_000_000, logger="n" * 1_000_000, data=1)
    assert recorder.logs == [("l" * 32, "n" * 256, b"1")]


def test_a_cancellation_without_a_valid_id_is_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for odd in ([1], {"id": 1}, None, True):
        Recorder().notify("cancelled", requestId=odd)
    assert caplog.records == []


def test_what_belongs_to_no_call_is_told_outside_unless_it_is_malformed_or_too_long() -> None:
    recorder = Recorder()
    told: list[tuple[str, bytes]] = []
    recorder.inbox.outside.connect(lambda *each: told.append(each))
    sent: list[tuple[str, dict[str, object], bool]] = [
        ("message", {"level": "info", "data": 1}, True),
        ("message", {"level": 7, "data": 1}, False),
        ("message", {"level": "info", "data": "x" * 300_000}, False),
        ("elicitation/complete", {"elicitationId": "e"}, True),
        ("elicitation/complete", {"elicitationId": None}, False),
        ("elicitation/complete", {}, False),
    ]
    for name, params, _ in sent:
        message = {"jsonrpc": "2.0", "method": f"notifications/{name}", "params": params}
        recorder.inbox.handle(read(json.dumps(message).encode()), None)
    assert [(method, json.loads(params)) for method, params in told] == [
        (f"notifications/{name}", params) for name, params, passes in sent if passes
    ]

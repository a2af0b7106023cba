"""The handshake over stdio, which is answered before the front connects."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    DiscoverResult,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from leaseway.front.protocol.envelope import MODERN_MARK
from leaseway.front.protocol.handshake import (
    CAPABILITIES_KEY,
    INFO_KEY,
    LOG_LEVEL_KEY,
    SERVER_INFO_KEY,
    SUBSCRIPTION_KEY,
)
from leaseway.front.stdio_handshake import MAX_LINE, STARTING, HandshakeResponder
from leaseway.wire.messages.mcp import HANDSHAKE_VERSIONS, MODERN_VERSIONS

BOUND = 30.0
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18"},
}


class Client:
    """The other end of two pipes."""

    def __init__(self, hold: float = 0.0) -> None:
        source, self._output = os.pipe()
        self._input, target = os.pipe()
        self._ends = [source, self._input, target]
        self.lines: SimpleQueue[bytes | None] = SimpleQueue()
        self.responder = HandshakeResponder(source, target, hold, STARTING if hold else "")
        self._responses = os.fdopen(self._input, closefd=False)

    def send(self, *messages: Any) -> None:
        for message in messages:
            whole = {"jsonrpc": "2.0", **message} if isinstance(message, dict) else message
            line = whole if isinstance(whole, bytes) else json.dumps(whole).encode()
            os.write(self._output, line + b"\n")

    def receive(self) -> Any:
        return json.loads(self._responses.readline())

    def close(self) -> None:
        os.close(self._output)
        self.responder.connect(self.lines.put)
        while self.lines.get(timeout=BOUND) is not None:
            pass  # so that its thread has ended
        self._responses.close()
        for end in self._ends:
            os.close(end)


def discover(version: str, capabilities: Any) -> Any:
    meta = {PROTOCOL_VERSION_META_KEY: version, CLIENT_CAPABILITIES_META_KEY: capabilities}
    return {"id": 7, "method": "server/discover", "params": {"_meta": meta}}


@pytest.fixture
def client() -> Iterator[Client]:
    made = Client()
    try:
        yield made
    finally:
        made.close()


def test_versions_and_keys_equal_those_of_the_official_package() -> None:
    assert tuple(HANDSHAKE_PROTOCOL_VERSIONS) == HANDSHAKE_VERSIONS
    assert tuple(MODERN_PROTOCOL_VERSIONS) == MODERN_VERSIONS
    assert PROTOCOL_VERSION_META_KEY.encode() == MODERN_MARK
    assert CLIENT_CAPABILITIES_META_KEY == CAPABILITIES_KEY
    assert SERVER_INFO_META_KEY == SERVER_INFO_KEY
    assert CLIENT_INFO_META_KEY == INFO_KEY
    assert LOG_LEVEL_META_KEY == LOG_LEVEL_KEY
    assert SUBSCRIPTION_ID_META_KEY == SUBSCRIPTION_KEY


def test_a_handshake_is_answered_before_the_front_connects(client: Client) -> None:
    client.send(b"", INITIALIZE)
    response = client.receive()
    assert response["id"] == 1
    assert response["result"]["protocolVersion"] == "2025-06-18"
    assert response["result"]["serverInfo"]["name"] == "leaseway"
    client.send({"method": "notifications/initialized"}, {"id": "p", "method": "ping"})
    assert client.receive() == {"jsonrpc": "2.0", "id": "p", "result": {}}
    client.send({"id": 2, "method": "tools/list"}, {"id": 3, "method": "ping"})
    answered = client.responder.connect(client.lines.put)
    assert answered is not None
    assert json.loads(answered) == INITIALIZE
    lines = [json.loads(client.lines.get(timeout=BOUND) or b"") for _ in range(2)]
    assert [line["id"] for line in lines] == [2, 3]


def test_discovery_is_answered_before_the_front_connects(client: Client) -> None:
    client.send(discover(MODERN_VERSIONS[0], {}))
    response = client.receive()
    assert response["id"] == 7
    found = DiscoverResult.model_validate(response["result"])
    assert found.supported_versions == [*MODERN_VERSIONS]
    assert found.capabilities.tools is not None
    assert client.responder.connect(client.lines.put) is None


@pytest.mark.parametrize(
    "line",
    [
        {"id": 1, "method": "initialize", "params": [1]},
        {"id": {}, "method": "initialize", "params": {}},
        {"id": 1, "result": {}},
        {**INITIALIZE, "jsonrpc": "1.0"},
        {"id": 1, "method": "server/discover", "params": {"_meta": {MODERN_MARK.decode(): "x"}}},
        discover("2099-01-01", {}),
        discover(MODERN_VERSIONS[0], None),
        b"no JSON",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_all_other_lines_wait_for_the_front(client: Client, line: Any) -> None:
    client.send(line, INITIALIZE)
    assert client.responder.connect(client.lines.put) is None
    client.lines.get(timeout=BOUND)
    assert json.loads(client.lines.get(timeout=BOUND) or b"") == INITIALIZE


def test_only_the_first_initialize_is_answered_before_the_front_connects(client: Client) -> None:
    client.send(INITIALIZE, INITIALIZE, b"x")
    assert client.receive()["id"] == 1
    client.responder.connect(client.lines.put)
    assert json.loads(client.lines.get(timeout=BOUND) or b"") == INITIALIZE


def test_a_line_that_is_too_long_keeps_its_start_and_its_end() -> None:
    source = "import sys; sys.stdout.write('x' * int(sys.argv[1]) + 'end\\nnext\\n')"
    with subprocess.Popen(
        [sys.executable, "-c", source, str(MAX_LINE + 1_000_000)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        taken: SimpleQueue[bytes | None] = SimpleQueue()
        HandshakeResponder(process.stdout.fileno(), -1).connect(taken.put)
        lines = [taken.get(timeout=BOUND) for _ in range(3)]
    long, after, end = lines
    assert long is not None
    start, _, tail = long.partition(b"\0")
    assert (len(start), tail[-4:], after, end) == (MAX_LINE + 1, b"xend", b"next\n", None)


def test_importing_the_handshake_imports_no_slow_package() -> None:
    heavy = "{'mcp', 'mcp_types', 'pydantic', 'aiohttp', 'leaseway.sdk'}"
    code = (
        "import sys, leaseway.cli.commands.running.mcp, leaseway.front.stdio_handshake;"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_held_handshake_is_answered_with_the_instructions_once_they_are_settled() -> None:
    client = Client(hold=BOUND)
    try:
        client.send(INITIALIZE, {"id": "p", "method": "ping"})
        assert client.receive()["id"] == "p"
        client.responder.instruct("Still starting: a.", False)
        client.send({"id": "q", "method": "ping"})
        assert client.receive()["id"] == "q"
        client.responder.instruct("Server b does not run.", True)
        response = client.receive()
        assert (response["id"], response["result"]["instructions"]) == (1, "Server b does not run.")
    finally:
        client.close()


def test_a_held_handshake_is_answered_in_time_without_instructions() -> None:
    client = Client(hold=0.01)
    try:
        client.send(discover(MODERN_VERSIONS[0], {}))
        assert "still starting" in client.receive()["result"]["instructions"]
    finally:
        client.close()

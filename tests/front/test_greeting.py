"""The first words over stdio, which are answered before there is a front."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    DiscoverResult,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from leaseway.front.greeting import (
    CAPABILITIES_KEY,
    HANDSHAKE_VERSIONS,
    MAX_LINE,
    MODERN_MARK,
    MODERN_VERSIONS,
    SERVER_INFO_KEY,
    Greeter,
)

BOUND = 30.0
INITIALIZE = {"id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}


class Client:
    """The other end of two pipes."""

    def __init__(self) -> None:
        source, self.sends = os.pipe()
        self._hears, target = os.pipe()
        self._ends = [source, self._hears, target]
        self.taken: SimpleQueue[bytes | None] = SimpleQueue()
        self.greeter = Greeter(source, target)
        self._lines = os.fdopen(self._hears, closefd=False)

    def say(self, *messages: Any) -> None:
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            os.write(self.sends, line + b"\n")

    def hear(self) -> Any:
        return json.loads(self._lines.readline())

    def close(self) -> None:
        os.close(self.sends)
        self.greeter.hand_over(self.taken.put)
        while self.taken.get(timeout=BOUND) is not None:
            pass  # so that its thread has ended
        self._lines.close()
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


def test_what_is_known_of_the_protocol_is_what_the_official_package_knows() -> None:
    assert tuple(HANDSHAKE_PROTOCOL_VERSIONS) == HANDSHAKE_VERSIONS
    assert tuple(MODERN_PROTOCOL_VERSIONS) == MODERN_VERSIONS
    assert PROTOCOL_VERSION_META_KEY.encode() == MODERN_MARK
    assert CLIENT_CAPABILITIES_META_KEY == CAPABILITIES_KEY
    assert SERVER_INFO_META_KEY == SERVER_INFO_KEY


def test_a_handshake_needs_no_front(client: Client) -> None:
    client.say(b"", INITIALIZE)
    said = client.hear()
    assert said["id"] == 1
    assert said["result"]["protocolVersion"] == "2025-06-18"
    assert said["result"]["serverInfo"]["name"] == "leaseway"
    client.say({"method": "notifications/initialized"}, {"id": "p", "method": "ping"})
    assert client.hear() == {"jsonrpc": "2.0", "id": "p", "result": {}}
    client.say({"id": 2, "method": "tools/list"}, {"id": 3, "method": "ping"})
    answered = client.greeter.hand_over(client.taken.put)
    assert answered is not None
    assert json.loads(answered) == INITIALIZE
    lines = [json.loads(client.taken.get(timeout=BOUND) or b"") for _ in range(2)]
    assert [line["id"] for line in lines] == [2, 3]


def test_a_modern_client_discovers_without_a_front(client: Client) -> None:
    client.say(discover(MODERN_VERSIONS[0], {}))
    said = client.hear()
    assert said["id"] == 7
    found = DiscoverResult.model_validate(said["result"])
    assert found.supported_versions == [*MODERN_VERSIONS]
    assert found.capabilities.tools is not None
    assert client.greeter.hand_over(client.taken.put) is None, "no handshake has happened"


@pytest.mark.parametrize(
    "line",
    [
        {"id": 1, "method": "initialize", "params": []},
        {"id": {}, "method": "initialize", "params": {}},
        {"id": 1, "result": {}},
        {"id": 1, "method": "server/discover", "params": {"_meta": {MODERN_MARK.decode(): "x"}}},
        discover("2099-01-01", {}),
        discover(MODERN_VERSIONS[0], None),
        b"no JSON",
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_all_else_waits_for_the_front(client: Client, line: Any) -> None:
    client.say(line, INITIALIZE)
    assert client.greeter.hand_over(client.taken.put) is None
    client.taken.get(timeout=BOUND)
    assert json.loads(client.taken.get(timeout=BOUND) or b"") == INITIALIZE


def test_only_the_first_handshake_is_answered_without_a_front(client: Client) -> None:
    client.say(INITIALIZE, INITIALIZE, b"x")
    assert client.hear()["id"] == 1
    client.greeter.hand_over(client.taken.put)
    assert json.loads(client.taken.get(timeout=BOUND) or b"") == INITIALIZE


def test_a_line_that_is_too_long_is_cut() -> None:
    source = "import sys; sys.stdout.write('x' * int(sys.argv[1]) + '\\nnext\\n')"
    with subprocess.Popen(
        [sys.executable, "-c", source, str(MAX_LINE + 1_000_000)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        taken: SimpleQueue[bytes | None] = SimpleQueue()
        Greeter(process.stdout.fileno(), -1).hand_over(taken.put)
        lines = [taken.get(timeout=BOUND) for _ in range(3)]
    assert [len(line) for line in lines if line is not None] == [MAX_LINE + 1, 5]
    assert lines[2] is None


def test_nothing_is_loaded_for_it_that_takes_long() -> None:
    """Importing it is all that stands between the command and its first answer."""
    heavy = "{'mcp', 'mcp_types', 'pydantic', 'aiohttp', 'leaseway.sdk'}"
    code = (
        "import sys, leaseway.cli.commands.running.mcp, leaseway.front.greeting;"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"

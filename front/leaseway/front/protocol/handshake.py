"""The handshake: server info, versions, and answers over stdio before the front is loaded.

Desktop clients give up on a program that does not answer `initialize` or `server/discover` within
some seconds. On a busy machine, importing the front or starting the planes takes longer. So this
module imports only what the command has imported already.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from leaseway.front.protocol.clients import WrongDeclarationError, initialize_in, meta_capabilities_in
from leaseway.front.protocol.envelope import (
    LONG_TAIL,
    VERSION_KEY,
    Notification,
    RequestMessage,
    names_version,
    read_message,
)
from leaseway.wire.bounds import MAX_ARGUMENTS, MIB
from leaseway.wire.channels.ancestors import META_KEY
from leaseway.wire.version import PACKAGE_VERSION

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that begin with `initialize`, oldest first; same as in the official package."""
MODERN_VERSIONS: Final = ("2026-07-28",)
"""Versions without handshake, as in the official package: requests carry version and capabilities
in `_meta`."""
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION_KEY: Final = "io.modelcontextprotocol/subscriptionId"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
CACHE_HINTS: Final = {"ttlMs": 0, "cacheScope": "private"}
"""Cache hints of modern lists and resource contents: do not cache."""
MAX_LINE: Final = MAX_ARGUMENTS + MIB
SERVER_INFO: Final = {"name": "leaseway", "title": "Leaseway", "version": PACKAGE_VERSION}
SERVER_META: Final = {SERVER_INFO_KEY: SERVER_INFO}
"""The `_meta` of every modern result: who answers."""
_TOOLS: Final = {"tools": {"listChanged": True}}
_SERVER_CAPABILITIES: Final[dict[str, dict[str, Any]]] = {
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True},
    "completions": {},
    "logging": {},
}
"""How the front declares what servers have beside tools; it tells of changes itself."""
_CHUNK: Final = 256 * 1024
STARTING: Final = (
    "Leaseway is still starting its servers. Their tools are announced when they are up"
    " (tools/list_changed)."
)
"""The instructions of a front with its own planes, before anything is known about the servers."""


@dataclass(frozen=True)
class Declared:
    """What the front declares beside tools, because servers that the client sees have it.

    Attributes:
        capabilities: Of `SERVER_CAPABILITIES`.
        extensions: The identifiers of MCP extensions, sorted.
    """

    capabilities: frozenset[str] = frozenset()
    extensions: tuple[str, ...] = ()

    def as_mcp(self) -> dict[str, Any]:
        """Return the `capabilities` of a result."""
        has = self.capabilities
        servers = {name: value for name, value in _SERVER_CAPABILITIES.items() if name in has}
        declared: dict[str, Any] = {**_TOOLS, **servers}
        if "resources" in declared and "subscribe" in has:
            declared["resources"] = {"subscribe": True, **declared["resources"]}
        if self.extensions:
            declared["extensions"] = {name: {} for name in self.extensions}
        return declared


EVERYTHING: Final = Declared(frozenset({*_SERVER_CAPABILITIES, "subscribe"}))
"""What is declared while servers are not known: a client never asks for what it did not see."""


def negotiate_version(requested: object) -> str:
    """Return the requested protocol version if it is supported, else the newest one."""
    if isinstance(requested, str) and requested in HANDSHAKE_VERSIONS:
        return requested
    return HANDSHAKE_VERSIONS[-1]


def initialize_result(
    version: str,
    instructions: str = "",
    control_plane: str = "",
    declared: Declared = EVERYTHING,
) -> bytes:
    """Return the result of `initialize`; what is empty is left out."""
    result: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": declared.as_mcp(),
        "serverInfo": SERVER_INFO,
    }
    if control_plane:
        result["_meta"] = {META_KEY: control_plane}
    return msgspec.json.encode(_instructed(result, instructions))


def discover_result(
    instructions: str = "", control_plane: str = "", declared: Declared = EVERYTHING
) -> bytes:
    """Return the result of `server/discover`; what is empty is left out."""
    own = {META_KEY: control_plane} if control_plane else {}
    result = {
        "supportedVersions": MODERN_VERSIONS,
        "capabilities": declared.as_mcp(),
        "resultType": "complete",
        **CACHE_HINTS,
        "_meta": {**SERVER_META, **own},
    }
    return msgspec.json.encode(_instructed(result, instructions))


def _instructed(result: dict[str, Any], instructions: str) -> dict[str, Any]:
    return result | {"instructions": instructions} if instructions else result


def _is_modern(params: Any) -> bool:
    """Return whether a request's `_meta` has a supported version and declares what it must."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    if not isinstance(meta, dict) or meta.get(VERSION_KEY) not in MODERN_VERSIONS:
        return False
    try:
        meta_capabilities_in(meta.get(CAPABILITIES_KEY), meta.get(INFO_KEY))
    except WrongDeclarationError:
        return False
    return True


def _initializes(params: Any) -> bool:
    """Return whether the params of `initialize` declare what they may."""
    if not isinstance(params, dict):
        return False
    try:
        initialize_in(params)
    except WrongDeclarationError:
        return False
    return True


class _BuildResult(Protocol):
    def __call__(self, *, instructions: str, declared: Declared) -> bytes: ...


class HandshakeResponder:
    """Reads a client's lines in a thread, and answers the first ones until the front connects.

    It answers `initialize`, `server/discover` and `ping`. Any other request waits for the front.

    Args:
        source: The descriptor of the client's lines.
        target: The descriptor for responses.
        hold: Seconds that answers to `initialize` and `server/discover` wait for `instruct`, so
            that they contain what servers say, and which servers do not run.
        instructions: The instructions until then.

    Attributes:
        answered: What it has declared to the client last; None before its first answer.
    """

    def __init__(self, source: int, target: int, hold: float = 0.0, instructions: str = "") -> None:
        self.target = target
        self._source = source
        self._initialize: bytes | None = None
        self._on_line: Callable[[bytes | None], None] | None = None
        self._lock = threading.Lock()
        self._is_connected = threading.Event()
        self._hold = hold
        self._instructions = instructions
        self._declared = EVERYTHING
        self.answered: Declared | None = None
        self._held: list[tuple[bytes, _BuildResult]] = []
        self._is_instructed = threading.Event()
        if not hold:
            self._is_instructed.set()
        threading.Thread(target=self._run, name="stdin", daemon=True).start()

    def instruct(
        self, instructions: str, is_settled: bool, declared: Declared = EVERYTHING
    ) -> None:
        """Set what clients are told; if it is settled, send the answers that waited for it."""
        with self._lock:
            self._instructions, self._declared = instructions, declared
            if is_settled:
                self._send_held()

    def wait_instructed(self) -> None:
        """Block until there are instructions, for at most the time that answers are held."""
        self._is_instructed.wait(self._hold)

    def _send_held(self) -> None:
        self._is_instructed.set()
        held, self._held = self._held, []
        for request_id, result in held:
            self._respond(request_id, self._build(result))

    def _stop_holding(self) -> None:
        with self._lock:
            self._send_held()

    def connect(self, on_line: Callable[[bytes | None], None]) -> bytes | None:
        """Pass all further lines to the front.

        Args:
            on_line: Called in the reading thread with each line, and with None at the end.

        Returns:
            The `initialize` request if it was answered here, else None.
        """
        with self._lock:
            self._on_line = on_line
            self._is_connected.set()
            return self._initialize

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError, OSError, CancelledError):  # the front has ended
            with open(self._source, "rb", closefd=False) as stream:
                while line := stream.readline(MAX_LINE + 1):
                    whole, tail = line, line[-LONG_TAIL:]
                    # Skip the rest of a line that is too long, up to its end.
                    while not line.endswith(b"\n") and (line := stream.readline(_CHUNK)):
                        tail = (tail + line)[-LONG_TAIL:]
                    if len(whole) > MAX_LINE and not whole.endswith(b"\n"):
                        whole += b"\0" + tail.rstrip()  # no JSON, whatever its length
                    self._handle_line(whole)
            self._stop_holding()  # the front ends soon, and nothing may stay unanswered
            self._handle_line(None)

    def _handle_line(self, line: bytes | None) -> None:
        with self._lock:
            if self._on_line is None and line is not None and self._try_answer(line):
                return
        self._is_connected.wait()
        assert self._on_line is not None
        self._on_line(line)

    def _try_answer(self, line: bytes) -> bool:
        """Answer a line if possible; return whether the front need not see it."""
        if not line.strip():
            return True
        message = read_message(line)
        if isinstance(message, Notification):
            return True  # no request is in flight that it could refer to
        if not isinstance(message, RequestMessage):
            return False
        try:
            params: Any = msgspec.json.decode(message.params or b"null")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if message.method != "initialize" and names_version(message):
            is_discovery = message.method == "server/discover" and _is_modern(params)
            return is_discovery and self._hold_or_respond(message.id, discover_result)
        if message.method == "ping":
            return self._respond(message.id, b"{}")
        if message.method != "initialize" or self._initialize is not None:
            return False
        if not _initializes(params):
            return False  # the front reports what is wrong with it
        self._initialize = line
        version = negotiate_version(params.get("protocolVersion"))
        return self._hold_or_respond(message.id, partial(initialize_result, version))

    def _build(self, result: _BuildResult) -> bytes:
        self.answered = self._declared
        return result(instructions=self._instructions, declared=self._declared)

    def _hold_or_respond(self, request_id: bytes, result: _BuildResult) -> bool:
        if self._is_instructed.is_set():
            return self._respond(request_id, self._build(result))
        if not self._held:
            timer = threading.Timer(self._hold, self._stop_holding)
            timer.daemon = True
            timer.start()
        self._held.append((request_id, result))
        return True

    def _respond(self, request_id: bytes, result: bytes) -> bool:
        unsent = memoryview(b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (request_id, result))
        while unsent:
            unsent = unsent[os.write(self.target, unsent) :]
        return True

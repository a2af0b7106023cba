"""The handshake over stdio, answered before the front is loaded.

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
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from leaseway.front.protocol.clients import (
    WrongDeclarationError,
    initialize_in,
    meta_capabilities_in,
)
from leaseway.front.protocol.envelope import (
    LONG_TAIL,
    VERSION_KEY,
    Notification,
    RequestMessage,
    names_version,
    read_message,
)
from leaseway.front.protocol.handshake import (
    CAPABILITIES_KEY,
    EVERYTHING,
    INFO_KEY,
    Declared,
    discover_result,
    initialize_result,
    negotiate_version,
)
from leaseway.wire.bounds import MAX_ARGUMENTS, MIB
from leaseway.wire.messages.mcp import MODERN_VERSIONS

MAX_LINE: Final = MAX_ARGUMENTS + MIB
STARTING: Final = (
    "Leaseway is still starting its servers. Their tools are announced when they are up"
    " (tools/list_changed)."
)
"""The instructions of a front with its own planes, before anything is known about the servers."""
_CHUNK: Final = 256 * 1024


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

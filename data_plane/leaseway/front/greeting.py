"""What a front says of itself, and how it says so over stdio before the rest of it is loaded.

Desktop clients give up on a program that does not answer `initialize` or `server/discover` within
some seconds. Loading what serves them takes longer on a busy machine, and so do planes that are
only being started. The first words need none of it: this module loads nothing but what the command
has loaded anyway.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, Final

import msgspec

from leaseway.wire.bounds import MAX_ARGUMENTS, MIB
from leaseway.wire.version import PACKAGE_VERSION

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that begin with `initialize`, oldest first; the official package has the same."""
MODERN_VERSIONS: Final = ("2026-07-28",)
"""Versions whose requests each say what they need; the official package has the same."""
VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
MODERN_MARK: Final = VERSION_KEY.encode()
"""What every request of a newer version has in it."""
CACHE_HINTS: Final = {"ttlMs": 0, "cacheScope": "private"}
"""What modern lists and contents say of caching: nothing is to be kept."""
MAX_LINE: Final = MAX_ARGUMENTS + MIB
SERVER_INFO: Final = {"name": "leaseway", "title": "Leaseway", "version": PACKAGE_VERSION}
CAPABILITIES: Final = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "completions": {},
    "logging": {},
}
_READ: Final = 256 * 1024


class _Opening(msgspec.Struct):
    """What of a message says whether it can be answered here."""

    method: str
    id: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    params: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_read_opening: Final = msgspec.json.Decoder(_Opening).decode


def negotiated(requested: object) -> str:
    """Return the version that a handshake ends with."""
    if isinstance(requested, str) and requested in HANDSHAKE_VERSIONS:
        return requested
    return HANDSHAKE_VERSIONS[-1]


def initialize_result(version: str) -> bytes:
    """Return the answer to a handshake."""
    return msgspec.json.encode(
        {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": SERVER_INFO}
    )


def discover_result() -> bytes:
    """Return what a client without a handshake asks for first."""
    return msgspec.json.encode(
        {
            "supportedVersions": MODERN_VERSIONS,
            "capabilities": CAPABILITIES,
            "resultType": "complete",
            **CACHE_HINTS,
            "_meta": {SERVER_INFO_KEY: SERVER_INFO},
        }
    )


def _is_whole(params: Any) -> bool:
    """Return whether a request says what each of its version has to say, and nothing unknown."""
    meta = params.get("_meta") if isinstance(params, dict) else None
    return (
        isinstance(meta, dict)
        and meta.get(VERSION_KEY) in MODERN_VERSIONS
        and isinstance(meta.get(CAPABILITIES_KEY), dict)
    )


class Greeter:
    """Reads a client's lines, from now on; answers the first ones until a front takes over.

    These are `initialize`, `server/discover` and `ping`. Nobody reads beyond anything else that
    wants an answer.

    Args:
        source: The descriptor that the client's lines come from.
        target: The one that answers go to.

    """

    def __init__(self, source: int, target: int) -> None:
        self.target = target
        self._source = source
        self._initialize: bytes | None = None
        self._take: Callable[[bytes | None], None] | None = None
        self._lock = threading.Lock()
        self._has_front = threading.Event()
        threading.Thread(target=self._run, name="stdin", daemon=True).start()

    def hand_over(self, take: Callable[[bytes | None], None]) -> bytes | None:
        """Give all further lines to a front.

        Args:
            take: Takes each line in the thread that reads them, and None at the end.

        Returns:
            The `initialize` request that was answered here, or None.

        """
        with self._lock:
            self._take = take
            self._has_front.set()
            return self._initialize

    def _run(self) -> None:
        with contextlib.suppress(RuntimeError, OSError, CancelledError):  # the front has ended
            with open(self._source, "rb", closefd=False) as stream:
                while line := stream.readline(MAX_LINE + 1):
                    whole = line
                    # The rest of one that is too long is skipped.
                    while not line.endswith(b"\n") and (line := stream.readline(_READ)):
                        pass
                    self._come(whole)
            self._come(None)

    def _come(self, line: bytes | None) -> None:
        with self._lock:
            if self._take is None and line is not None and self._greet(line):
                return
        self._has_front.wait()
        assert self._take is not None
        self._take(line)

    def _greet(self, line: bytes) -> bool:
        """Return whether a line needs no front any more."""
        if not line.strip():
            return True
        try:
            opening = _read_opening(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        request_id = bytes(opening.id)
        if not request_id:
            return True  # a notification; nothing is under way that it could be about
        if request_id[:1] not in b'"-0123456789':
            return False
        try:
            params: Any = msgspec.json.decode(opening.params) if bytes(opening.params) else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        if MODERN_MARK in line:
            is_discovery = opening.method == "server/discover" and _is_whole(params)
            return is_discovery and self._answer(request_id, discover_result())
        if opening.method == "ping":
            return self._answer(request_id, b"{}")
        if opening.method != "initialize" or self._initialize is not None:
            return False
        if not isinstance(params, dict):
            return False
        self._initialize = line
        version = negotiated(params.get("protocolVersion"))
        return self._answer(request_id, initialize_result(version))

    def _answer(self, request_id: bytes, result: bytes) -> bool:
        request_id = request_id.replace(b"\n", b" ").replace(b"\r", b" ")
        left = memoryview(b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (request_id, result))
        while left:
            left = left[os.write(self.target, left) :]
        return True

"""MCP: versions, names (requests, codes, log levels, rules for sessions, keys), introductions.

An introduction is what a server says about itself at the handshake. A worker admits it from the
server, and the control plane from a worker, with the same bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from leaseway.wire.bounds import MAX_EXTENSIONS, MAX_INSTRUCTIONS
from leaseway.wire.errors import Fault, Reason

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions that begin with `initialize`, oldest first; same as in the official package."""

MODERN_VERSIONS: Final = ("2026-07-28",)
"""Versions without handshake, as in the official package: requests carry version and capabilities
in `_meta`."""

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022
"""Codes of errors, of JSON-RPC and of MCP. `mcp_types` has them too, but takes long to load."""

ELICIT: Final = "elicitation/create"
"""Asks a person to fill in a form or to open a page."""

ELICIT_URL: Final = "elicitation/create#url"
"""Among the methods that a caller answers: it also opens addresses for a person (mode `url`)."""

SAMPLE: Final = "sampling/createMessage"
"""Asks a model to write a message."""

ROOTS: Final = "roots/list"
"""Lists the directories and files that the server may access."""

TOOLS_CHANGED: Final = "notifications/tools/list_changed"
"""Says that the list of tools has changed."""

ROOTS_CHANGED: Final = "notifications/roots/list_changed"
"""Says that the result of `roots/list` has changed."""

LOG_LEVELS: Final = (
    "debug",
    "info",
    "notice",
    "warning",
    "error",
    "critical",
    "alert",
    "emergency",
)
"""The lowest level first."""

SESSION_RULES: Final = (
    "argument",
    "handle",
    "conversation",
    "mcp-session",
    "cookie",
    "principal",
)
"""What may say to which session a call of an MCP client belongs, the first one first: an argument
of the tool, a handle in `_meta` or a header, the host's id of a conversation in `_meta` or a
header, `Mcp-Session-Id`, a cookie, the authenticated principal."""

DEFAULT_SESSION_RULES: Final = SESSION_RULES[:-1]
"""All but the principal, whose conversations would share their state."""

SESSION_ARGUMENT: Final = "session"
"""The preferred name of the argument that says a call's session."""

CONVERSATION_KEYS: Final = ("openai/session",)
"""The keys of `_meta` in which hosts send ids of their conversations."""

UNFIT_KEY: Final = "leaseway/unfit"
"""The key of `_meta` of a result that does not fit its tool's output schema: why."""

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"
"""Members of `_meta` that carry a trace (MCP, General fields), and HTTP headers (W3C)."""

_HOP_KEYS: Final = frozenset({"progressToken", TRACEPARENT, TRACESTATE})
_OF_EACH_REQUEST: Final = frozenset(
    f"io.modelcontextprotocol/{name}"
    for name in ("protocolVersion", "clientInfo", "clientCapabilities", "logLevel")
)
"""Reserved keys that each request of a modern client has; known without parsing them."""
CALL_KEYS: Final = frozenset(
    {"claudecode/toolUseId", "vscode.requestId", "x-codex-turn-metadata", BAGGAGE}
)
"""Keys of `_meta` whose values differ each time that a host makes the same call: they name the
call, or the turn of the conversation."""
_RESERVED_LABELS: Final = frozenset({"modelcontextprotocol", "mcp", "leaseway"})


def is_reserved_meta(key: str) -> bool:
    """Return whether a key of `_meta` belongs to one connection and is not passed on.

    MCP reserves prefixes whose second label is `modelcontextprotocol` or `mcp`; progress tokens and
    trace contexts are created for each hop; keys with Leaseway's prefix are for the MCP front.
    """
    if key in _HOP_KEYS or key in _OF_EACH_REQUEST:
        return True
    prefix, slash, _ = key.partition("/")
    return bool(slash) and not _RESERVED_LABELS.isdisjoint(prefix.split(".")[:2])


def check_log_level(level: str) -> None:
    """Check the lowest level of log messages that a caller requests.

    Raises:
        Fault: INVALID_REQUEST: it is not a level of MCP.
    """
    if level not in LOG_LEVELS:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"log_level is one of {', '.join(LOG_LEVELS)}, not {level[:64]!r}.",
        )


ServerCapability = Literal["completions", "logging", "prompts", "resources", "subscribe"]
"""What servers may have beside tools, as MCP names it; `subscribe` is that of resources."""

SERVER_CAPABILITIES: Final[tuple[ServerCapability, ...]] = get_args(ServerCapability)

_EXTENSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9._-]{1,127})?")
"""An identifier of an extension: a name, in a name space."""


@dataclass(frozen=True)
class Introduction:
    """What a server says about itself.

    Attributes:
        instructions: How to use the server, for models; empty means nothing.
        extensions: The identifiers of the MCP extensions that it supports, sorted.
        capabilities: What it has of `SERVER_CAPABILITIES`, sorted.
    """

    instructions: str = ""
    extensions: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.instructions or self.extensions or self.capabilities)


NO_INTRODUCTION: Final = Introduction()


def admit(
    instructions: str, extensions: Iterable[str], capabilities: Iterable[str] = ()
) -> tuple[Introduction, tuple[str, ...]]:
    """Return an introduction within its bounds, and a sentence for each thing that was changed.

    A capability that is none of `SERVER_CAPABILITIES` is one of a newer worker, and left out.
    """
    changed = []
    text = instructions.strip()
    if len(text) > MAX_INSTRUCTIONS:
        changed.append(
            f"Its instructions have {len(text)} characters, of which the first {MAX_INSTRUCTIONS} "
            "are passed on."
        )
        text = text[:MAX_INSTRUCTIONS].rstrip()
    named = sorted(set(extensions))
    valid = [name for name in named if _EXTENSION.fullmatch(name)][:MAX_EXTENSIONS]
    if len(valid) < len(named):
        changed.append(
            f"{len(named) - len(valid)} of its {len(named)} extensions are left out: at most "
            f"{MAX_EXTENSIONS} are passed on, whose identifiers are names such as "
            "`io.modelcontextprotocol/ui`."
        )
    has = frozenset(capabilities)
    capable = tuple(name for name in SERVER_CAPABILITIES if name in has)
    return Introduction(text, tuple(valid), capable), tuple(changed)

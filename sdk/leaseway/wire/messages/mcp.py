"""The levels of log messages, as MCP takes them from syslog.

What MCP servers ask of who calls them, by the names of MCP's methods.
"""

from __future__ import annotations

from typing import Final

from leaseway.wire.errors import Fault, Reason

ELICIT: Final = "elicitation/create"
"""Have a person fill in a form or open a page."""

SAMPLE: Final = "sampling/createMessage"
"""Have a model write a message."""

ROOTS: Final = "roots/list"
"""Say which directories and files may be worked on."""


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
"""The least first."""


_OF_A_HOP: Final = frozenset({"progressToken", "traceparent", "tracestate"})
_OWNERS: Final = frozenset({"modelcontextprotocol", "mcp", "leaseway"})


def is_reserved_meta(key: str) -> bool:
    """Return whether a key of `_meta` belongs to one connection and goes no further.

    MCP reserves prefixes whose second label is `modelcontextprotocol` or `mcp`; progress tokens and
    trace contexts are made anew on each hop; what has our prefix is meant for a front.
    """
    if key in _OF_A_HOP:
        return True
    prefix, slash, _ = key.partition("/")
    return bool(slash) and not _OWNERS.isdisjoint(prefix.split(".")[:2])


def check_log_level(level: str) -> None:
    """Check the least level of log messages that a caller wants.

    Raises:
        Fault: INVALID_REQUEST: it is none of MCP's.
    """
    if level not in LOG_LEVELS:
        raise Fault(
            Reason.INVALID_REQUEST,
            f"log_level is one of {', '.join(LOG_LEVELS)}, not {level[:64]!r}.",
        )

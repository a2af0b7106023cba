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

"""The levels of log messages, as MCP takes them from syslog."""

from typing import Final

from leaseway.wire.fault import Fault
from leaseway.wire.reasons import Reason

__all__ = ["LOG_LEVELS", "check_log_level"]

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

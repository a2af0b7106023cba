"""The levels of log messages, as MCP takes them from syslog."""

from typing import Final

__all__ = ["LOG_LEVELS"]

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

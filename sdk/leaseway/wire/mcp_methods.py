"""What MCP servers ask of who calls them, by the names of MCP's methods."""

from __future__ import annotations

from typing import Final

__all__ = ["ELICIT", "ROOTS", "SAMPLE"]

ELICIT: Final = "elicitation/create"
"""Have a person fill in a form or open a page."""

SAMPLE: Final = "sampling/createMessage"
"""Have a model write a message."""

ROOTS: Final = "roots/list"
"""Say which directories and files may be worked on."""

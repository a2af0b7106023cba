"""How a command ends when it cannot do what it was asked: a sentence and an exit status."""

from __future__ import annotations

from typing import Final

import click

FAILED: Final = 1
"""The command failed, or the tool said `isError`."""
USAGE: Final = 2
"""The command line, or a file that it names, cannot be used."""
UNREACHABLE: Final = 3
"""The control plane cannot be reached."""


class CliFailure(click.ClickException):
    """Ends the command with an exit status; `leaseway: MESSAGE` goes to stderr."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status

"""The error that ends a command, and the exit statuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

FAILED: Final = 1
"""The command failed, or the tool returned `isError`."""
USAGE: Final = 2
"""The command line is invalid, or a file that it names is."""
UNREACHABLE: Final = 3
"""The control plane is unreachable."""


class CliFailure(click.ClickException):
    """Ends the command with an exit status; `leaseway: MESSAGE` goes to stderr."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


@contextmanager
def as_failure(kind: type[Exception], status: int = FAILED) -> Iterator[None]:
    """Raise an error of one kind as a `CliFailure` with the same message."""
    try:
        yield
    except kind as error:
        raise CliFailure(str(error), status) from None

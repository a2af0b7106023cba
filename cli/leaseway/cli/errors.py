"""The error that ends a command, and the exit statuses."""

from __future__ import annotations

import errno
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


def os_failure(error: OSError) -> str:
    """Return the sentence for an error of the system that ends a process, or of our own."""
    text = str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return (
            f"{error.strerror}: this process may not open more. Raise the limit, by `ulimit -n` or "
            "LimitNOFILE= of a systemd unit."
        )
    if error.errno == errno.ENOENT and error.filename is None and "temporary directory" in text:
        return (
            f"{error.strerror}. Mount a folder at /tmp that can be written, or name one in TMPDIR."
        )
    return text

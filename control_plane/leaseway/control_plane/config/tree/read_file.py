"""Reading a configuration file, bounded, with failures as sentences."""

from __future__ import annotations

import stat
from pathlib import Path

from leaseway.wire.bounds import MAX_CONFIG


class Unreadable(Exception):
    """A file that is there but can't be read as text; the message is why, as a sentence."""


def read_config(path: Path) -> str:
    """Return a configuration file's text, at most little more than `MAX_CONFIG` bytes of it.

    Raises:
        FileNotFoundError: There is no such file.
        Unreadable: It is no regular file, can't be opened, or is not UTF-8.
    """
    try:
        # A pipe or device would block for ever, or never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable("It is not a regular file.")
        with path.open("rb") as file:
            # A few bytes more, so that the parser sees that the file is too large.
            data = file.read(MAX_CONFIG + 8)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(str(path)) from error
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise Unreadable(f"{reason}.") from None
    if len(data) > MAX_CONFIG:
        return data.decode("utf-8", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            f"It is not UTF-8: byte {error.start}, on line {line}, can't be decoded."
            " Save it as UTF-8."
        ) from None

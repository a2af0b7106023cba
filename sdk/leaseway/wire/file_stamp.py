"""Tells whether a file has changed, without reading it."""

from __future__ import annotations

from pathlib import Path

FileStamp = tuple[int, ...]
"""Differs after a file, its mode, or why there is none has changed; good for comparing only."""


def file_stamp(path: Path) -> FileStamp:
    """Return the stamp of a file or folder. Blocks."""
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno or 0,)
    except ValueError:  # no name of a file contains a zero byte
        return (0,)
    # The change time moves at steps of some milliseconds: within one, size and mode may still tell.
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mode,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )

"""Reads all files of a configuration at once.

Files that are swapped together must be read together: if one changes meanwhile, the reading is
torn, and the caller waits and reads again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from leaseway.control_plane.config.layers.sources import Source, files_in, tenant_file
from leaseway.control_plane.config.tree.files import (
    Unreadable,
    read_config,
)
from leaseway.wire.file_stamp import FileStamp, file_stamp

FileStamps = Mapping[Source, FileStamp | None]


@dataclass(frozen=True)
class FileSnapshot:
    """The contents of all files at one moment.

    Attributes:
        contents: The text of each existing file, or why it can't be read.
        stamps: Each file's stamp before it was read; None if it must be read again.
        torn: Whether a file changed meanwhile.
        unlisted: Folders that cannot be listed.
    """

    contents: Mapping[Source, str | Unreadable]
    stamps: FileStamps
    torn: bool
    unlisted: frozenset[Path] = frozenset()


def read_sources(sources: Iterable[Source]) -> FileSnapshot:
    """Read files, and all files of folders. Blocks."""
    before = file_stamps(sources)
    contents: dict[Source, str | Unreadable] = {}
    for source in before:
        if source.folder:
            continue
        try:
            contents[source] = read_config(source.path)
        except FileNotFoundError:
            continue
        except Unreadable as error:
            contents[source] = error
    torn = file_stamps(sources) != before
    # A file may become readable without a change of its stamp.
    valid = {
        source: None if isinstance(contents.get(source), Unreadable) else seen
        for source, seen in before.items()
    }
    unlisted = frozenset(source.path for source in before if source.folder)
    return FileSnapshot(contents, valid, torn, unlisted)


def file_stamps(sources: Iterable[Source]) -> FileStamps:
    """Return the stamp of each file, including those in folders. Blocks.

    A folder that cannot be listed has one itself.
    """
    return {source: file_stamp(source.path) for source in _files(sources)}


def _files(sources: Iterable[Source]) -> dict[Source, None]:
    found: dict[Source, None] = {}
    for source in sources:
        if not source.folder:
            found[source] = None
            continue
        try:
            paths = files_in(source.path)
        except OSError:
            found[source] = None  # its files count as absent, and it is followed itself
            continue
        found.update(dict.fromkeys(tenant_file(source, path) for path in paths))
    return found

"""One reading of all files of a configuration: what is there now, and whether it held still.

Files that are swapped together are read together: a reading during which one of them changed is
torn, and its reader waits and reads again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from leaseway.control_plane.config.layers.sources import Source, files_in, tenant_file
from leaseway.control_plane.config.tree.read_file import Unreadable, read_config

Signature = tuple[int, int, int, int, int]
"""Tells two contents of a path apart without reading them."""

Signatures = Mapping[Source, Signature | None]


@dataclass(frozen=True)
class Reading:
    """What all files were at one moment.

    Attributes:
        contents: The text of each file that is there, or why it can't be read.
        signatures: Each file as it was before it was read; None for what should be looked at again.
        torn: Whether something changed meanwhile.
    """

    contents: Mapping[Source, str | Unreadable]
    signatures: Signatures
    torn: bool


def read_sources(sources: Iterable[Source]) -> Reading:
    """Read files, and all files of folders. Blocks."""
    before = signatures(sources)
    contents: dict[Source, str | Unreadable] = {}
    for source in before:
        try:
            contents[source] = read_config(source.path)
        except FileNotFoundError:
            continue
        except Unreadable as error:
            contents[source] = error
    torn = signatures(sources) != before
    # What keeps a file from being read may pass without a trace on it.
    seen = {
        source: None if isinstance(contents.get(source), Unreadable) else signature
        for source, signature in before.items()
    }
    return Reading(contents, seen, torn)


def signatures(sources: Iterable[Source]) -> Signatures:
    """Return how each file looks from outside, those of folders included. Blocks."""
    return {source: _signature(source.path) for source in _files(sources)}


def _files(sources: Iterable[Source]) -> dict[Source, None]:
    found: dict[Source, None] = {}
    for source in sources:
        if not source.folder:
            found[source] = None
            continue
        try:
            paths = files_in(source.path)
        except OSError:
            paths = []  # those that were there count as absent
        found.update(dict.fromkeys(tenant_file(source, path) for path in paths))
    return found


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)

"""Segments: the parts of audit files that a sink stores, and the check of their order. Pure.

The object `RUN/FILE.OFFSET` contains the bytes of a file from an offset on. So a name and the size
say where the next object begins: the sink itself is the shipper's bookmark, an object that was
sent twice has one name, and a gap between objects is visible. An object ends with a whole write,
unless the sink takes none of that size: then the next object continues it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from leaseway.data_plane.audit.sinks.port import StoredObject

_NAME: Final = re.compile(r"(?P<run>[A-Za-z0-9_.-]+)/(?P<file>\d{6,})\.(?P<offset>\d{12,})")
_SEALED: Final = re.compile(rb',"hash":"[0-9a-f]{64}"\}\n\Z')


class Position(NamedTuple):
    """A place in the files of a run.

    Attributes:
        file: The number of the file, from 1.
        offset: Bytes since its begin.
    """

    file: int
    offset: int


@dataclass(frozen=True, slots=True)
class Segment:
    """An object of a sink.

    Attributes:
        name: The object's name.
        run: The run of a worker.
        start: Where it begins.
        size: Its size in bytes.
    """

    name: str
    run: str
    start: Position
    size: int

    @property
    def end(self) -> int:
        return self.start.offset + self.size

    @property
    def after(self) -> Position:
        """Where the next object of the file begins."""
        return Position(self.start.file, self.end)


def object_name(run: str, start: Position) -> str:
    return f"{run}/{start.file:06}.{start.offset:012}"


def sealed_part(content: bytes, limit: int) -> bytes:
    """Return the start of whole writes of a file: up to `limit`, or the first write if longer.

    A rest without a hash, which only a killed worker leaves, is returned as it is.
    """
    lines = content.splitlines(keepends=True)
    end = position = 0
    for line in lines:
        position += len(line)
        if end and position > limit:
            break
        if is_sealed(line):
            end = position
    return content[: end or len(content)]


def is_sealed(content: bytes) -> bool:
    """Return whether bytes of a file end with the hash of a write."""
    return _SEALED.search(content[-80:]) is not None


def runs_of(objects: Iterable[StoredObject]) -> dict[str, list[Segment]]:
    """Return the segments among objects by run, in the order in which they were written."""
    runs: dict[str, list[Segment]] = {}
    for stored in objects:
        match = _NAME.fullmatch(stored.name)
        if match is not None:
            start = Position(int(match["file"]), int(match["offset"]))
            segment = Segment(stored.name, match["run"], start, stored.size)
            runs.setdefault(segment.run, []).append(segment)
    for segments in runs.values():
        segments.sort(key=_start)
    return dict(sorted(runs.items()))


def gaps(segments: list[Segment]) -> list[str]:
    """Return a sentence for each place where objects of a run are missing or overlap."""
    found: list[str] = []
    before: Segment | None = None
    for segment in segments:
        if before is None or before.start.file != segment.start.file:
            expected = Position(before.start.file + 1 if before else segment.start.file, 0)
        else:
            expected = before.after
        if expected < segment.start:
            missing = object_name(segment.run, expected)
            found.append(f"{missing}: The object, which is before {segment.name}, is missing.")
        elif expected > segment.start:
            assert before is not None
            found.append(f"{segment.name}: The object repeats bytes of {before.name}.")
        before = segment
    return found


def _start(segment: Segment) -> Position:
    return segment.start

"""All rows and special measurements, in the order of the report."""

from __future__ import annotations

from benchmarks.rows import floor, front, official, own, peers
from benchmarks.rows.row import Row
from benchmarks.specials import (
    control_plane,
    flooded,
    leases,
    memory,
    neighbour,
    side_by_side,
    templates,
    watched,
)
from benchmarks.specials.special import Special

__all__ = ["ALL", "ROWS", "SPECIALS", "find_row"]

ROWS: tuple[Row, ...] = (*floor.ROWS, *official.ROWS, *own.ROWS, *front.ROWS, *peers.ROWS)
SPECIALS: tuple[Special, ...] = (
    *leases.SPECIALS,
    *neighbour.SPECIALS,
    *flooded.SPECIALS,
    *control_plane.SPECIALS,
    *memory.SPECIALS,
    *templates.SPECIALS,
    *side_by_side.SPECIALS,
    *watched.SPECIALS,
)
ALL: tuple[Row | Special, ...] = (*ROWS, *SPECIALS)


def find_row(name: str, command: str | None = None) -> Row | Special:
    """Return a row or special measurement by name; with a command, the row of a named peer.

    Raises:
        KeyError: There is none.
    """
    if command is not None:
        return peers.named(name.removeprefix(peers.NAMED), command)
    return {row.name: row for row in ALL}[name]

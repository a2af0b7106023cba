"""Exposed names that moved from one server to another, reported as problems.

While both servers want the name, the move stays reported. If the former server lost the name, the
move is reported for an hour at most, and only while that server exists and does not expose the item
under another name, such as with a new prefix. A name that moves back is no longer reported.

See design.md#names-and-versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS, NamedKind
from leaseway.control_plane.core.catalog.snapshot import Snapshot, View
from leaseway.control_plane.core.problems import Problem

REPORTED_FOR: Final = 3600.0
"""Seconds for which a move is reported if the former server lost the name."""

MoveKey = tuple[str, str]
"""(kind, exposed name)."""


@dataclass(frozen=True)
class Move:
    """A name that moved to another server.

    Attributes:
        former: Id of the server that had the name.
        owner: Id of the server that has it now.
        disputed: Whether both servers want the name.
        until: When the report expires on the monotonic clock; None while disputed.
    """

    kind: NamedKind
    name: str
    former: str
    owner: str
    disputed: bool
    until: float | None = None

    @property
    def key(self) -> MoveKey:
        return self.kind.noun, self.name

    @property
    def problem(self) -> Problem:
        head = (
            f"The {self.kind.noun} name '{self.name}' moved from server '{self.former}' to server"
            f" '{self.owner}',"
        )
        if self.disputed:
            message = f"{head} whose id sorts first. Give one of them a prefix to use both."
        else:
            message = (
                f"{head} the only one that has it now. Check whether callers of the name expect"
                f" that. This report ends after an hour, or when '{self.former}' has the name again"
                " or is removed."
            )
        reason = self.kind.owner_changed
        return Problem("server", reason, message, self.owner, severity="warning", subject=self.name)


def update_moves(
    known: Mapping[MoveKey, Move], old: Snapshot, new: Snapshot, now: float
) -> dict[MoveKey, Move]:
    """Return the moves to report after a commit.

    Args:
        known: The moves reported before.
        old: The previous commit.
        now: The time on the monotonic clock.
    """
    view = new.view("")
    moves = {key: move for key, move in known.items() if _matters(move, view)}
    for move in _moved(old.view(""), view, now):
        before = known.get(move.key)
        if before is not None and before.former == move.owner:
            moves.pop(move.key, None)  # it moved back
        else:
            moves[move.key] = move
    return moves


def _matters(move: Move, view: View) -> bool:
    target = view.named(move.kind).get(move.name)
    if target is None or target.served.key.server_id != move.owner:
        return False
    if move.disputed:
        return _exposes(move.former, move.kind, move.name, view)
    return move.former in view.servers


def _exposes(server_id: str, kind: NamedKind, name: str, view: View) -> bool:
    served = view.servers.get(server_id)
    return served is not None and any(exposed.name == name for exposed in served.names(kind))


def _has(server_id: str, original: str, kind: NamedKind, view: View) -> bool:
    """Return whether a server exposes an item under any name."""
    served = view.servers.get(server_id)
    names = served.names(kind) if served is not None else ()
    return any(name.original == original for name in names)


def _moved(old: View, new: View, now: float) -> Iterator[Move]:
    # Both servers of a move have changed: one has lost the name and the other has got it.
    changed = [
        server_id
        for server_id in sorted(old.servers.keys() & new.servers.keys())
        if old.servers[server_id] is not new.servers[server_id]
    ]
    gone = sorted(old.servers.keys() - new.servers.keys())
    added = sorted(new.servers.keys() - old.servers.keys())
    for kind in (TOOLS, PROMPTS):
        before = {
            item.name: (server_id, item.original)
            for server_id in (*changed, *gone)
            for item in old.servers[server_id].callable(kind)
        }
        for owner in (*changed, *added):
            for name in (item.name for item in new.servers[owner].callable(kind)):
                former, original = before.get(name, (owner, ""))
                if former == owner:
                    continue
                disputed = _exposes(former, kind, name, new)
                if disputed or not _has(former, original, kind, new):
                    until = None if disputed else now + REPORTED_FOR
                    yield Move(
                        kind=kind,
                        name=name,
                        former=former,
                        owner=owner,
                        disputed=disputed,
                        until=until,
                    )

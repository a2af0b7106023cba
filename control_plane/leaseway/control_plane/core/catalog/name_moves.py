"""Names that moved from one server to another, for as long as an operator should know (DESIGN §4).

A move that left two servers with one name is told while both have it. One by which the other lost
the name cannot be mended by anybody who meant it: it is told while that server is there, at least
until the registry changes again, and for an hour at most; not where it has what it named under
another name now: whoever gave it a prefix meant that. A name that moves back ends the matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from leaseway.control_plane.core.catalog.kinds import PROMPTS, TOOLS, NamedKind
from leaseway.control_plane.core.catalog.snapshot import Snapshot, View
from leaseway.control_plane.core.problems import Problem

TOLD_FOR: Final = 3600.0
"""Seconds for which a name that its former server lost is told of."""

MoveKey = tuple[str, str]
"""(kind, exposed name)."""


@dataclass(frozen=True)
class Move:
    """One name that another server has than before.

    Attributes:
        kind: Of what it is a name.
        name: The exposed name.
        former: The id of the server that had it.
        owner: The id of the server that has it now.
        disputed: Whether both wanted it when it moved.
        until: When it is told of no more, on the monotonic clock; None while both want it.
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
        """What operators are told."""
        head = (
            f"The {self.kind.noun} name '{self.name}' moved from server '{self.former}' to server"
            f" '{self.owner}',"
        )
        if self.disputed:
            message = (
                f"{head} whose id sorts first. Give one of them a prefix if both are meant to be"
                " used."
            )
        else:
            message = (
                f"{head} which alone has it now. See whether those who use it mean that server's;"
                f" this ends after an hour, or when '{self.former}' has the name again or is"
                " removed."
            )
        reason = self.kind.owner_changed
        return Problem("server", reason, message, self.owner, severity="warning", subject=self.name)


def followed(
    known: Mapping[MoveKey, Move], old: Snapshot, new: Snapshot, now: float
) -> dict[MoveKey, Move]:
    """Return the moves that are worth telling of at a new snapshot.

    Args:
        known: Those that were at the old one.
        old: What was committed before.
        new: What is committed now.
        now: The time, on the monotonic clock.
    """
    view = new.view("")
    moves = {key: move for key, move in known.items() if _matters(move, view)}
    for move in _moved(old.view(""), view, now):
        before = known.get(move.key)
        if before is not None and before.former == move.owner:
            moves.pop(move.key, None)  # it is back where it was
        else:
            moves[move.key] = move
    return moves


def _matters(move: Move, view: View) -> bool:
    target = view.named(move.kind).get(move.name)
    if target is None or target.served.key.server_id != move.owner:
        return False
    if move.disputed:
        return _wants(move.former, move.kind, move.name, view)
    return move.former in view.servers


def _wants(server_id: str, kind: NamedKind, name: str, view: View) -> bool:
    served = view.servers.get(server_id)
    return served is not None and any(one.name == name for one in served.names(kind))


def _has(server_id: str, original: str, kind: NamedKind, view: View) -> bool:
    """Return whether a server exposes what it calls by a name, as whatever."""
    served = view.servers.get(server_id)
    names = served.names(kind) if served is not None else ()
    return any(one.original == original for one in names)


def _moved(old: View, new: View, now: float) -> Iterator[Move]:
    for kind in (TOOLS, PROMPTS):
        before = old.named(kind)
        for name, target in new.named(kind).items():
            was, owner = before.get(name), target.served.key.server_id
            if was is not None and was.served.key.server_id != owner:
                former = was.served.key.server_id
                disputed = _wants(former, kind, name, new)
                if disputed or not _has(former, was.item.original, kind, new):
                    until = None if disputed else now + TOLD_FOR
                    yield Move(kind, name, former, owner, disputed, until)

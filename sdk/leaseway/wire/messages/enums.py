"""Converts the enumerations of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.v1 import admin_pb2, catalog_pb2
from leaseway.wire.messages.states import CallSelection, ServerState

_TO_PROTO: Final = {
    state: (
        catalog_pb2.SERVER_STATE_UNSPECIFIED
        if state is ServerState.UNKNOWN
        else catalog_pb2.ServerState.Value(f"SERVER_STATE_{state.name}")
    )
    for state in ServerState
}
_FROM_PROTO: Final[dict[int, ServerState]] = {int(n): state for state, n in _TO_PROTO.items()}

SELECTIONS: Final[Mapping[CallSelection, admin_pb2.CallSelection.ValueType]] = {
    "recent": admin_pb2.CALL_SELECTION_RECENT,
    "slow": admin_pb2.CALL_SELECTION_SLOW,
    "failed": admin_pb2.CALL_SELECTION_FAILED,
}
_SELECTIONS_FROM_PROTO: Final[dict[int, CallSelection]] = {
    number: selection for selection, number in SELECTIONS.items()
}


def selection_from_proto(number: int) -> CallSelection:
    """Return which calls a request selects; the recent ones unless it says otherwise."""
    return _SELECTIONS_FROM_PROTO.get(number, "recent")


def server_state_to_proto(state: ServerState) -> catalog_pb2.ServerState.ValueType:
    return _TO_PROTO[state]


def server_state_from_proto(number: int) -> ServerState:
    """Return the state of a message; `UNKNOWN` for one of a newer version."""
    return _FROM_PROTO.get(number, ServerState.UNKNOWN)

"""Calls as messages, made from flat fields, and read as a worker reads them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from leaseway.data_plane.core.calls.incoming import IncomingCall
from leaseway.data_plane.services.streams import CallHeads
from leaseway.identity.principal import LOOPBACK
from leaseway.v1 import execution_pb2

_OWN = frozenset(execution_pb2.Call.DESCRIPTOR.fields_by_name)
_HEAD = frozenset(execution_pb2.CallHead.DESCRIPTOR.fields_by_name)


class ReceivedCall(IncomingCall, frozen=True, gc=False):
    """A call with its arguments."""

    arguments: bytes = b""


def call_message(**fields: Any) -> execution_pb2.Call:
    """Return a call with fields of `Call`, `CallHead` and `CallOptions`."""
    own = {name: value for name, value in fields.items() if name in _OWN}
    return execution_pb2.Call(head=head_of(**fields), **own)


def head_of(**fields: Any) -> bytes:
    """Return a serialized `CallHead` with fields of it and of `CallOptions`; others are ignored."""
    head = {name: value for name, value in fields.items() if name in _HEAD}
    rare = {name: value for name, value in fields.items() if name not in _OWN | _HEAD}
    message = execution_pb2.CallHead(**head)
    if rare:
        message.options.CopyFrom(execution_pb2.CallOptions(**rare))
    return message.SerializeToString()


def read_call(message: execution_pb2.Call) -> ReceivedCall:
    """Return a call as a worker without authentication reads it."""
    call = CallHeads(LOOPBACK).read(message, message.id)
    return ReceivedCall(**asdict(call), arguments=message.arguments)

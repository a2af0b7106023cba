"""JSON objects of the console from the messages that the command line gets too.

A field that a message gains is thus in the console's JSON at once.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

Json = dict[str, Any]

_SHORT: Final = {"server_id": "server", "worker_id": "worker"}


def row(message: Message, without: Collection[str] = ()) -> Json:
    """Return a message as a JSON object.

    Times are seconds since 1970, durations are seconds, and a message that is not set is null. The
    ids of a server and a worker are named `server` and `worker`.

    Args:
        without: Names of fields to leave out.
    """
    return {
        _SHORT.get(field.name, field.name): _value(message, field)
        for field in message.DESCRIPTOR.fields
        if field.name not in without
    }


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return dict(value) if hasattr(value, "items") else [_item(item) for item in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return _item(value)


def _item(value: Any) -> Any:
    match value:
        case Timestamp() | Duration():
            return value.ToNanoseconds() / 1e9
        case Message():
            return row(value)
        case bytes():
            return value.decode()
        case _:
            return value

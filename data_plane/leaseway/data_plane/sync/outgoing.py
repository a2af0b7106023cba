"""What a worker writes to the control plane, without values that it learned from references.

This is the one place where text leaves for the control plane. Only text is touched: a name or an
id that happens to equal a value has to stay what it is, and specs hold references.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from leaseway.wire.secrets.redaction import redact

TEXT: Final = frozenset({"message", "details", "arguments"})
"""The fields that hold what servers or callers wrote, and what is told of them."""

AS_IT_IS: Final = frozenset({"Upsert"})
"""Messages that are sealed: what the control plane itself has sent."""


def without_secrets(message: Message) -> None:
    """Redact the text fields of a message, in place."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if field.name in TEXT:
                _redact_field(message, field.name, value)
        elif (kind := field.message_type) is not None:
            if kind.name in AS_IT_IS or kind.GetOptions().map_entry:
                continue
            if isinstance(value, Message):
                without_secrets(value)
            else:
                for item in value:
                    without_secrets(item)


def _redact_field(message: Any, name: str, value: Any) -> None:
    if isinstance(value, str):
        shown = redact(value)
        if shown != value:
            setattr(message, name, shown)
        return
    for i, item in enumerate(value):
        value[i] = redact(item)

"""The bytes of approvals in the store. A member that this release does not know is refused.

Nobody decides on a part, and to write the record again would lose what the newer release has put
there. The members are the fields of `ApprovalRecord`, so that none is forgotten; a new one needs a
default, which records of earlier releases get.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, Final, get_type_hints

import msgspec

from leaseway.control_plane.core.approvals import LIFETIME, ApprovalRecord, ApprovalRequest
from leaseway.control_plane.core.moment import Moment

_UNSTORED: Final = "ends"
"""It is on the monotonic clock, which another process does not share."""


class MalformedRecord(Exception):
    """The bytes are no approval; the message says why, without their content."""


def _stored(value: type[Any], **other_types: type[Any]) -> type[msgspec.Struct]:
    """Return what the store has of a dataclass, with other types for some fields."""
    types = get_type_hints(value) | other_types
    members: list[Any] = [
        (field.name, types[field.name])
        if field.default is MISSING
        else (field.name, types[field.name], field.default)
        for field in fields(value)
        if field.name != _UNSTORED
    ]
    return msgspec.defstruct(
        value.__name__, members, kw_only=True, frozen=True, forbid_unknown_fields=True
    )


_decoder = msgspec.json.Decoder(_stored(ApprovalRecord, question=_stored(ApprovalRequest)))


def encode(record: ApprovalRecord) -> bytes:
    """Return the bytes of an approval. Its time on the monotonic clock is not in them."""
    members = msgspec.to_builtins(record)
    del members[_UNSTORED]
    return msgspec.json.encode(members)


def decode(value: bytes, now: Moment) -> ApprovalRecord:
    """Return an approval.

    Args:
        now: The time. A clock that differs from the writer's moves the end, but by no more than to
            a lifetime from now.

    Raises:
        MalformedRecord: They are none.
    """
    try:
        members = msgspec.structs.asdict(_decoder.decode(value))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRecord(str(error)) from None
    members["question"] = ApprovalRequest(**msgspec.structs.asdict(members["question"]))
    ends = now.mono + min(members["until"] - now.unix, LIFETIME)
    return ApprovalRecord(**members, ends=ends)

"""The bytes of approvals in the store. A member that this release does not know is refused.

Nobody decides on a part, and to write the record again would lose what the newer release has put
there.
"""

from __future__ import annotations

import msgspec

from leaseway.control_plane.core.approvals import LIFETIME, ApprovalRecord, ApprovalRequest
from leaseway.control_plane.core.moment import Moment
from leaseway.wire.messages.states import ApprovalState


class MalformedRecord(Exception):
    """The bytes are no approval; the message says why, without their content."""


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    agent: str
    session: str
    of_session: bool
    server_id: str
    tool: str
    digest: str
    arguments: str
    asked_by: str
    extra: str
    worker_id: str


class _Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: str
    number: int
    question: _Question
    state: ApprovalState
    asked: float
    until: float
    decided_by: str
    note: str
    use_id: str


_decoder = msgspec.json.Decoder(_Approval)


def encode(record: ApprovalRecord) -> bytes:
    """Return the bytes of an approval. Its time on the monotonic clock is not in them."""
    asked = record.question
    return msgspec.json.encode(
        _Approval(
            id=record.id,
            number=record.number,
            question=_Question(
                **{name: getattr(asked, name) for name in _Question.__struct_fields__}
            ),
            state=record.state,
            asked=record.asked,
            until=record.until,
            decided_by=record.decided_by,
            note=record.note,
            use_id=record.use_id,
        )
    )


def decode(value: bytes, now: Moment) -> ApprovalRecord:
    """Return an approval.

    Args:
        value: Its bytes.
        now: The time. A clock that differs from the writer's moves the end, but by no more than to
            a lifetime from now.

    Raises:
        MalformedRecord: They are none.
    """
    try:
        found = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedRecord(str(error)) from None
    question = msgspec.structs.asdict(found.question)
    return ApprovalRecord(
        id=found.id,
        number=found.number,
        question=ApprovalRequest(**question),
        state=found.state,
        asked=found.asked,
        until=found.until,
        ends=now.mono + min(found.until - now.unix, LIFETIME),
        decided_by=found.decided_by,
        note=found.note,
        use_id=found.use_id,
    )

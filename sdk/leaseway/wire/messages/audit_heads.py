"""Converts heads of the audit and their anchors, which both planes and operators exchange."""

from __future__ import annotations

import re
from typing import Final

from leaseway.v1 import admin_pb2
from leaseway.wire.audit_heads import NOTHING, AuditAnchor, AuditHead, Mark

MAX_SINK: Final = 1_024
"""Characters of the address of a sink."""
_RUN: Final = re.compile(r"[A-Za-z0-9_.-]{1,256}")  # a worker's id of up to 128, its incarnation
_HASH: Final = re.compile(r"[0-9a-f]{64}")


def head_to_proto(head: AuditHead) -> admin_pb2.AuditHead:
    return admin_pb2.AuditHead(
        run=head.run,
        sink=head.sink,
        written=head.written.seq,
        written_hash=head.written.hash,
        shipped=head.shipped.seq,
        shipped_hash=head.shipped.hash,
        has_ended=head.has_ended,
    )


def head_from_proto(message: admin_pb2.AuditHead) -> AuditHead | None:
    """Return the head of a message, or None if it names no run or no records of one."""
    written = _mark(message.written, message.written_hash)
    shipped = _mark(message.shipped, message.shipped_hash)
    if not _RUN.fullmatch(message.run) or len(message.sink) > MAX_SINK:
        return None
    if written is None or shipped is None or shipped.seq > written.seq:
        return None
    return AuditHead(
        run=message.run,
        sink=message.sink,
        written=written,
        shipped=shipped,
        has_ended=message.has_ended,
    )


def anchor_to_proto(anchor: AuditAnchor) -> admin_pb2.AuditAnchor:
    message = admin_pb2.AuditAnchor(
        head=head_to_proto(anchor.head),
        worker_id=anchor.worker_id,
        is_contradicted=anchor.is_contradicted,
    )
    message.told_at.FromNanoseconds(int(anchor.told_at * 1e9))
    if anchor.lost_at is not None:
        message.lost_at.FromNanoseconds(int(anchor.lost_at * 1e9))
    return message


def anchor_from_proto(message: admin_pb2.AuditAnchor) -> AuditAnchor | None:
    """Return the anchor of a message, or None if its head is malformed."""
    head = head_from_proto(message.head)
    if head is None:
        return None
    return AuditAnchor(
        head=head,
        worker_id=message.worker_id,
        told_at=message.told_at.ToNanoseconds() / 1e9,
        lost_at=message.lost_at.ToNanoseconds() / 1e9 if message.HasField("lost_at") else None,
        is_contradicted=message.is_contradicted,
    )


def _mark(seq: int, digest: str) -> Mark | None:
    if not seq:
        return NOTHING if not digest else None
    return Mark(seq, digest) if _HASH.fullmatch(digest) else None

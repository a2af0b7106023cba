"""Anchors of the audit move forward only, and say which worker is gone."""

from __future__ import annotations

from dataclasses import replace

from leaseway.control_plane.core.audit_anchors import AuditAnchors
from leaseway.wire.audit_heads import AuditAnchor, AuditHead, Mark


def head(written: int, shipped: int = 0, run: str = "w1.a", digest: str = "a") -> AuditHead:
    return AuditHead(
        run, "s3://audit", Mark(written, digest * 64), Mark(shipped, digest * 64 if shipped else "")
    )


def only(anchors: AuditAnchors) -> AuditAnchor:
    [anchor] = anchors.listed()
    return anchor


def test_an_anchor_moves_forward_and_never_back() -> None:
    anchors = AuditAnchors()
    for written, shipped in ((5, 3), (9, 7), (6, 2)):
        anchors.record("w1", head(written, shipped), now=float(written))
    assert (only(anchors).head.written.seq, only(anchors).head.shipped.seq) == (9, 7)
    assert not only(anchors).is_contradicted


def test_another_hash_of_a_record_is_remembered_and_does_not_replace_the_first() -> None:
    anchors = AuditAnchors()
    anchors.record("w1", head(5), now=1.0)
    anchors.record("w1", head(5, digest="b"), now=2.0)
    anchors.record("w1", head(6), now=3.0)
    assert only(anchors).is_contradicted


def test_records_after_the_end_of_a_run_contradict_it() -> None:
    anchors = AuditAnchors()
    anchors.record("w1", replace(head(5), has_ended=True), now=1.0)
    anchors.record("w2", head(9), now=2.0)
    assert only(anchors).is_contradicted
    assert only(anchors).head.written.seq == 5


def test_a_worker_without_a_stream_is_lost_until_it_tells_again() -> None:
    anchors = AuditAnchors()
    anchors.record("w1", head(5), now=1.0)
    assert anchors.anchors_now("w1")
    anchors.handle_left("w1", now=7.0)
    assert only(anchors).lost_at == 7.0
    assert not anchors.anchors_now("w1")
    anchors.record("w1", head(6), now=9.0)
    assert only(anchors).lost_at is None


def test_a_worker_that_started_anew_has_lost_its_earlier_run_until_somebody_ships_it() -> None:
    anchors = AuditAnchors()
    anchors.record("w1", head(5), now=1.0)
    anchors.record("w1", head(1, run="w1.b"), now=4.0)
    first, _ = anchors.listed()
    assert first.lost_at == 4.0
    anchors.record("w2", replace(head(6, 6), has_ended=True), now=5.0)
    first, second = anchors.listed()
    assert (first.lost_at, first.head.has_ended, second.lost_at) == (None, True, None)
    anchors.handle_left("w2", now=6.0)
    assert anchors.listed()[0].lost_at is None


def test_beyond_the_limit_the_oldest_runs_without_a_worker_are_forgotten_and_counted() -> None:
    anchors = AuditAnchors(limit=3)
    anchors.record("w1", head(1, run="w1.live"), now=0.0)
    for number in range(4):
        ended = replace(head(1, run=f"w2.{number}"), has_ended=True)
        anchors.record("w2", ended, now=1.0 + number)
    assert [anchor.head.run for anchor in anchors.listed()] == ["w1.live", "w2.2", "w2.3"]
    assert anchors.forgotten == 2

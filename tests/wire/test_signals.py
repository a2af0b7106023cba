"""Signals, with which lower parts tell upper ones what happens."""

from __future__ import annotations

from leaseway.wire.signals import Signal


def test_a_signal_calls_its_handlers_in_order_with_each_event() -> None:
    heard: list[tuple[str, str, int]] = []
    ended: Signal[str, int] = Signal()
    ended.emit("nobody hears", 0)
    ended.connect(lambda name, count: heard.append(("first", name, count)))
    ended.connect(lambda name, count: heard.append(("second", name, count)))
    ended.emit("db", 3)
    assert heard == [("first", "db", 3), ("second", "db", 3)]


def test_a_signal_is_true_once_something_handles_it() -> None:
    ended: Signal[str] = Signal()
    assert not ended
    ended.connect(print)
    assert ended

"""Counts how often callers reached a bound of what one of them may take."""

from __future__ import annotations

from collections.abc import Mapping

from leaseway.telemetry.metrics import Meter
from leaseway.wire.limits import named_in
from leaseway.wire.span_attributes import Attr


class LimitCounter:
    """The counter of all bounds of a plane.

    Args:
        meter: Where it is registered.
    """

    def __init__(self, meter: Meter) -> None:
        self._reached = meter.counter(
            "leaseway.limits.reached",
            "{refusal}",
            "Times that a caller reached a bound, by which one, and whose: connection, tenant "
            "or worker.",
            Attr.LIMIT,
            Attr.SCOPE,
        )

    def note(self, metadata: Mapping[str, str]) -> None:
        """Count a refusal whose metadata name a bound; others are not counted."""
        named = named_in(metadata)
        if named is not None:
            self._reached.cell(*named).add()

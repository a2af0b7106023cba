"""The metric for limits that callers have reached."""

from __future__ import annotations

from collections.abc import Mapping

from leaseway.telemetry.metrics import Meter
from leaseway.wire.sharing.limits import limit_entry, reached_limit
from leaseway.wire.span_attributes import Attr


class LimitCounter:
    """Counts the limits that callers of a plane have reached."""

    def __init__(self, meter: Meter) -> None:
        self._reached = meter.counter(
            "leaseway.limits.reached",
            "{refusal}",
            "Times that a caller reached a bound, by which one, whose, and the entry of the "
            "configuration that sets it.",
            Attr.LIMIT,
            Attr.SCOPE,
            Attr.TENANT,
            Attr.AGENT,
            Attr.SERVER,
            Attr.GEN_AI_TOOL_NAME,
        )

    def record(self, metadata: Mapping[str, str]) -> None:
        """Count an error whose metadata name a limit; ignore other errors."""
        limit = reached_limit(metadata)
        if limit is not None:
            self._reached.cell(*limit, *limit_entry(metadata)).add()

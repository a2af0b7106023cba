"""Names of the headers and members of `_meta` that carry a trace (W3C; MCP, General fields)."""

from typing import Final

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
BAGGAGE: Final = "baggage"

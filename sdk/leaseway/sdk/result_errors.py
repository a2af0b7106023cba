"""How a call with `result_type` fails although the tool returned something.

Both hold that result, and both have the reason SERVER_ERROR: what the server returned is not
what the caller asked for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from leaseway.sdk.errors import LeasewayError
from leaseway.sdk.results import ToolResult
from leaseway.wire.reasons import Reason

__all__ = ["ResultTypeError", "ToolError"]


class _WithResult(LeasewayError):
    """A failure that leaves a result.

    Attributes:
        result: What the tool returned.
    """

    def __init__(self, message: str, result: ToolResult) -> None:
        super().__init__(message, started="yes")
        self.result = result

    def __reduce__(self) -> tuple[Any, ...]:
        # A lease belongs to the client that holds it and does not travel.
        result = ToolResult(self.result.payload, self.result.is_error)
        return partial(type(self), self.message, result), ()


class ToolError(_WithResult):
    """The tool said that it failed (`is_error`), so there is nothing to convert.

    Only `result_type` makes this an exception: `.result.text` is what the tool said.
    """

    reason = Reason.SERVER_ERROR


class ResultTypeError(_WithResult, ValueError):
    """The result has not the shape of `result_type`; the text names the first three faults."""

    reason = Reason.SERVER_ERROR

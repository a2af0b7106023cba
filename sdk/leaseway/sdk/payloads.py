"""MCP results as workers pass them on: bytes that are parsed when somebody looks at them."""

from __future__ import annotations

import json
from typing import Any, Final

from leaseway.sdk.errors import InternalError

__all__ = ["parse_result"]

_decode: Final = json.JSONDecoder().decode
"""What `json.loads` does with a text, less its look at the encoding and its own parameters."""


def parse_result(payload: bytes) -> dict[str, Any]:
    """Return an MCP `result` object; an empty payload is an empty one.

    Raises:
        InternalError: It is no JSON object.

    """
    if not payload:
        return {}
    try:
        value = _decode(payload.decode())
    except (ValueError, RecursionError) as error:
        raise InternalError(
            f"The worker passed on a result that is not JSON ({error}); see `.payload`.",
            started="yes",
        ) from None
    if not isinstance(value, dict):
        raise InternalError(
            "The worker passed on a result that is not a JSON object; see `.payload`.",
            started="yes",
        )
    return value

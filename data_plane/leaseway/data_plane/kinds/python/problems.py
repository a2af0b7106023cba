"""The problems that servers which are Python classes have of their own."""

from __future__ import annotations

from leaseway.data_plane.core.problems import sentence
from leaseway.server.faults import RAISED


def problem_in(line: str, server_id: str) -> tuple[str, str] | None:
    """Return the reason and the message of a problem if a line of stderr says that a call raised.

    Args:
        line: The line.
        server_id: The server.
    """
    place = line.removeprefix(RAISED)
    if place == line:
        return None
    message = (
        f"A call raised: {sentence(place)} Its caller got the error. See"
        f" `leaseway logs {server_id}` for the traceback; this warning stays until the server's"
        " entry or code changes."
    )
    return "CALL_RAISED", message

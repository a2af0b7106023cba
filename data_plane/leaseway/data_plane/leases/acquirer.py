"""Who acquires a lease, as a request or a call names it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leaseway.wire.names import MAX_KEY_LENGTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquirer:
    """Who acquires a lease.

    Attributes:
        agent: The calling agent.
        user: The user for whom it calls, or empty.
        subject_token: The token of whoever it calls for, or empty. A secret.
        credential: The name of the caller's credential, or empty.
        client: The name of the client, or empty.
    """

    agent: str = ""
    user: str = ""
    subject_token: str = field(default="", repr=False)
    credential: str = ""
    client: str = ""


UNNAMED: Final = Acquirer()


def bounded_client(client: str) -> str:
    """Return the name of a client as leases keep it: at most 256 characters, the first ones."""
    return client[:MAX_KEY_LENGTH]

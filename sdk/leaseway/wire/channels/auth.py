"""The credential that a process sends, as `authorization: Bearer KEY`, with every request.

It is the shared key of planes and trusted services, an API key or a token; `leaseway.identity`
checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.secrets.redaction import hide

KEY_VARIABLE: Final = "LEASEWAY_KEY"
"""The environment variable that holds the credential which a process sends."""

WORKER_KEY_VARIABLE: Final = "LEASEWAY_WORKER_KEY"
"""The environment variable that holds what a worker joins a control plane with."""

_HEADER: Final = "authorization"


def read_key(environment: Mapping[str, str], variable: str = KEY_VARIABLE) -> str | None:
    """Return the key that a variable of an environment holds, or None where it is unset or empty.

    From then on no log line of this process shows it.

    Raises:
        ValueError: The key holds what an HTTP header cannot; the message never shows it.
    """
    key = environment.get(variable, "")
    if not key:
        return None
    if not all("!" <= character <= "~" for character in key):
        raise ValueError(
            f"{variable} may only hold visible ASCII characters without spaces; "
            f"make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    hide((key,), variable)
    return key


def bearer_metadata(key: str | None) -> tuple[tuple[str, str], ...]:
    """Return the gRPC metadata that proves knowledge of the key; empty without one."""
    return ((_HEADER, f"Bearer {key}"),) if key else ()


def check_listen(endpoint: Endpoint, credentials: object) -> None:
    """Refuse to listen where other machines can reach an unprotected service.

    Args:
        endpoint: Where.
        credentials: The shared key, or whatever else callers are checked by; None for nothing.

    Raises:
        ValueError: The address is not loopback and there is nothing.
    """
    if credentials is None and not endpoint.is_loopback:
        raise ValueError(
            f"Listening on {endpoint} would let other machines in without a credential. "
            f"Set {KEY_VARIABLE} to a shared key, name API keys by --keys, or listen on "
            f"127.0.0.1:{endpoint.port}."
        )

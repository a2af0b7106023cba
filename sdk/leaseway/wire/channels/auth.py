"""The credential that a process sends with every request, as `authorization: Bearer KEY`.

It is the shared key of planes and trusted services, an API key or a token; `leaseway.identity`
checks it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.secrets.redaction import hide

KEY_VARIABLE: Final = "LEASEWAY_KEY"
"""The environment variable with the credential that a process sends."""

WORKER_KEY_VARIABLE: Final = "LEASEWAY_WORKER_KEY"
"""The environment variable with the credential that a worker sends to the control plane."""

_HEADER: Final = "authorization"
_SCHEME: Final = "bearer"


def read_key(environment: Mapping[str, str], variable: str = KEY_VARIABLE) -> str | None:
    """Return the key from an environment variable, or None if it is unset or empty.

    The key is redacted from all later log lines of this process.

    Raises:
        ValueError: The key has characters that an HTTP header cannot hold; the message does not
            show it.
    """
    key = environment.get(variable, "")
    if not key:
        return None
    if not _fits_header(key):
        if _fits_header(key.strip()):
            raise ValueError(
                f"{variable} begins or ends with a space or a line break, which `echo` and editors "
                "add to files and Kubernetes Secrets: remove it (`printf %s KEY` writes none)."
            )
        raise ValueError(
            f"{variable} may only contain visible ASCII characters without spaces; "
            f"create one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    hide((key,), variable)
    return key


def _fits_header(key: str) -> bool:
    return all("!" <= character <= "~" for character in key)


def bearer_metadata(key: str | None) -> tuple[tuple[str, str], ...]:
    """Return the gRPC metadata with the key; empty without one."""
    return ((_HEADER, f"Bearer {key}"),) if key else ()


def bearer_credential(authorization: str) -> str:
    """Return the credential in an `Authorization` header, or empty if it has no bearer credential.

    The name of the scheme has no case (RFC 9110, section 11.1): many clients send the `bearer` of
    the token's response.
    """
    scheme, _, credential = authorization.partition(" ")
    return credential.strip() if scheme.lower() == _SCHEME else ""


def check_listen(endpoint: Endpoint, credentials: object) -> None:
    """Check that a service without credentials listens on a loopback address only.

    Args:
        endpoint: The address to listen on.
        credentials: The shared key, or another way to authenticate callers; None for no checks.

    Raises:
        ValueError: Other machines could reach an unprotected service.
    """
    if credentials is None and not endpoint.is_loopback:
        raise ValueError(
            f"Listening on {endpoint} would let other machines in without a credential. "
            f"Set {KEY_VARIABLE} to a shared key, name API keys by --keys, or listen on "
            f"127.0.0.1:{endpoint.port}."
        )

"""Whether a request stays encrypted where it is sent on, and why a certificate is refused. Pure."""

from __future__ import annotations

import ssl
from typing import Final

_ENCRYPTED: Final = ("https", "wss")
_UNKNOWN_AUTHORITY: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's codes for certificates that a known authority has not signed."""


def leaves_encryption(source: str, target: str) -> bool:
    """Return whether a redirect, or an address that a server names, gives up encryption.

    Whoever is on the way of such a request could read and change it, although the first address
    promised that nobody can. Nothing in Leaseway follows it.

    Args:
        source: The scheme of the address that names the other one, in lower case.
        target: The scheme of the address that is named.
    """
    return source in _ENCRYPTED and target not in _ENCRYPTED


def untrusted(error: BaseException, process: str = "the worker") -> str | None:
    """Return why a connection's certificate is refused, or None if it failed for another reason.

    Args:
        error: Of the connection, as `ssl` or aiohttp raises it.
        process: Who connects.

    Returns:
        The end of a sentence.
    """
    cause = getattr(error, "os_error", error)
    refused = getattr(error, "certificate_error", cause)
    if not isinstance(refused, ssl.SSLCertVerificationError):
        return None
    text = f"its certificate is not trusted ({refused.verify_message.rstrip('.')})"
    if refused.verify_code not in _UNKNOWN_AUTHORITY:
        return text
    return (
        f"{text}; a file with the certificate of its authority can be named in the variable"
        f" SSL_CERT_FILE of {process}"
    )

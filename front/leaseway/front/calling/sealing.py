"""Sealed session ids: each contains its session, so any front with the key can serve it. Pure.

A sealed id is a small JSON object, encrypted with AES-256-GCM. Clients cannot read or forge it.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE: Final = 12
_MAX_LENGTH: Final = 4096
"""Characters of a sealed id."""
_INPUT_CAPABILITIES: Final = {
    "elicitation": ("form", "url"),
    "sampling": ("tools", "context"),
    "roots": ("listChanged",),
}
"""The client capabilities for server requests, with their options."""


class InvalidSessionId(Exception):
    """An id that was not sealed with this key, or has expired."""


class SealedSession(msgspec.Struct, frozen=True):
    """The contents of a session id.

    Attributes:
        key: The key of the SDK session, which has the leases.
        tenant: The client's tenant.
        scope: The server that the client sees; empty means all.
        version: The negotiated protocol version.
        capabilities: The client's capabilities for server requests.
        expires: When it expires, in seconds since 1970.
    """

    key: str
    tenant: str
    scope: str
    version: str
    capabilities: dict[str, Any]
    expires: float


_decode: Final = msgspec.json.Decoder(SealedSession).decode


class Sealer:
    """Seals and opens ids of one kind.

    Args:
        secret: Shared by all fronts that open each other's ids; None means a random one.
        purpose: Separates ids of different kinds.
    """

    def __init__(self, secret: str | None, purpose: str) -> None:
        material = secret.encode() if secret is not None else secrets.token_bytes(32)
        digest = hashlib.blake2b(material, digest_size=32, person=purpose.encode()[:16])
        self._cipher = AESGCM(digest.digest())

    def seal(self, session: SealedSession) -> str:
        """Return the id of a session: visible ASCII."""
        nonce = secrets.token_bytes(_NONCE)
        sealed = self._cipher.encrypt(nonce, msgspec.json.encode(session), None)
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def open(self, sealed: str, now: float) -> SealedSession:
        """Return the session in an id.

        Raises:
            InvalidSessionId: It was not sealed with this key, or has expired.
        """
        if len(sealed) > _MAX_LENGTH:
            raise InvalidSessionId
        try:
            data = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
            session = _decode(self._cipher.decrypt(data[:_NONCE], data[_NONCE:], None))
        except (ValueError, InvalidTag):
            raise InvalidSessionId from None
        if session.expires <= now:
            raise InvalidSessionId
        return session


def input_capabilities(capabilities: object) -> dict[str, Any]:
    """Return the capabilities for server requests, without any other content."""
    known: dict[str, Any] = {}
    if not isinstance(capabilities, dict):
        return known
    for name, options in _INPUT_CAPABILITIES.items():
        value = capabilities.get(name)
        if isinstance(value, dict):
            known[name] = {option: {} for option in options if option in value}
    return known

"""Session ids that carry their session, so that any front that knows the key can serve it. Pure.

A sealed id is AES-256-GCM over a small JSON object. It can be neither read nor made by a client.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE: Final = 12
_LONGEST: Final = 4096
"""Characters of a sealed id; a longer one is none of ours."""
_ASKED: Final = {
    "elicitation": ("form", "url"),
    "sampling": ("tools", "context"),
    "roots": ("listChanged",),
}
"""What servers may ask clients, and in which ways."""


class BrokenSeal(Exception):
    """An id that this key did not seal, or that has expired."""


class SealedSession(msgspec.Struct, frozen=True):
    """What a session id says.

    Attributes:
        key: The SDK session's key, which leads to its leases.
        tenant: Whose it is.
        scope: The server that the client sees; empty means all.
        version: The protocol version that was agreed on.
        capabilities: What the client answers.
        expires: When it ends, in seconds since 1970.
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
        secret: What all fronts know that are to open each other's ids; None means that only
            this one does.
        purpose: Keeps ids of different kinds apart.
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
        """Return what an id says.

        Raises:
            BrokenSeal: It was not sealed with this key, or has expired.
        """
        if len(sealed) > _LONGEST:
            raise BrokenSeal
        try:
            data = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
            session = _decode(self._cipher.decrypt(data[:_NONCE], data[_NONCE:], None))
        except (ValueError, InvalidTag):
            raise BrokenSeal from None
        if session.expires <= now:
            raise BrokenSeal
        return session


def known_capabilities(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an id keeps of a client's capabilities: what servers may ask it, and how."""
    kept: dict[str, Any] = {}
    for name, ways in _ASKED.items():
        value = capabilities.get(name)
        if isinstance(value, dict):
            kept[name] = {way: {} for way in ways if way in value}
    return kept

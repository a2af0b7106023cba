"""Session ids and handles that any front with the key can serve, and nobody else can make. Pure.

A sealed id is a small JSON object, encrypted with AES-256-GCM. A handle is short, because models
copy it: a random part, its expiry, and a code that binds both to the owner. The key of a session
that has neither is derived from what the client sends, such as a host's id of the conversation.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from typing import Any, Final, NamedTuple

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE: Final = 12
_MAX_LENGTH: Final = 4096
"""Characters of a sealed id."""
_HANDLE: Final = re.compile(r"[A-Za-z0-9_-]{32}", re.ASCII)
"""The form of a handle. A sealed id is longer."""
_RANDOM: Final = 8
_EXPIRY: Final = 4
_CODE: Final = 12
"""Bytes of the parts of a handle; its expiry is in minutes since 1970."""


class InvalidSessionId(Exception):
    """An id that was not sealed with this key, or has expired."""


class Owner(NamedTuple):
    """Whom a session belongs to: an id is worth nothing to anybody else.

    Attributes:
        tenant: The client's tenant.
        principal: The name of its principal, and of the user that it names; empty if clients are
            not told apart.
    """

    tenant: str
    principal: str = ""


class SealedSession(msgspec.Struct, frozen=True):
    """The contents of a session id.

    Attributes:
        key: The key of the SDK session, which has the leases.
        tenant: The client's tenant.
        scope: The server that the client sees; empty means all.
        version: The negotiated protocol version.
        capabilities: The client's capabilities that can be honoured.
        expires: When it expires, in seconds since 1970.
        principal: The client's principal; empty if clients are not told apart.
        client: The name of the client's program, shortened; empty if it sent none.
        info: What the client's program says about itself.
        handle: The handle of the session that has its leases, because its client may leave it
            after a call; empty if it has them itself.
    """

    key: str
    tenant: str
    scope: str
    version: str
    capabilities: dict[str, Any]
    expires: float
    principal: str = ""
    client: str = ""
    info: dict[str, str] = {}
    handle: str = ""

    @property
    def owner(self) -> Owner:
        return Owner(self.tenant, self.principal)


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
        self._code_key = hashlib.blake2b(digest.digest(), person=b"codes").digest()

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

    def seal_text(self, text: bytes, bound: bytes) -> str:
        """Return a text in a form that only `open_text` reads, if it is given the same `bound`."""
        nonce = secrets.token_bytes(_NONCE)
        sealed = self._cipher.encrypt(nonce, text, b"text" + bound)
        return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")

    def open_text(self, sealed: str, bound: bytes) -> bytes:
        """Return a sealed text.

        Raises:
            InvalidSessionId: It was not sealed with this key, or is bound to something else.
        """
        try:
            data = base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4))
            return self._cipher.decrypt(data[:_NONCE], data[_NONCE:], b"text" + bound)
        except (ValueError, InvalidTag):
            raise InvalidSessionId from None

    def make_handle(self, owner: Owner, scope: str, expires: float) -> str:
        """Return a new handle: letters, digits, `-` and `_`."""
        minutes = int(expires // 60).to_bytes(_EXPIRY, "big")
        body = secrets.token_bytes(_RANDOM) + minutes
        return base64.urlsafe_b64encode(body + self._code("handle", body, owner, scope)).decode()

    def open_handle(self, handle: str, owner: Owner, scope: str, now: float) -> tuple[str, float]:
        """Return the key of a handle's session, and when the handle expires.

        Raises:
            InvalidSessionId: It was not made with this key for this owner and scope, or has
                expired.
        """
        try:
            data = base64.b64decode(handle, b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise InvalidSessionId from None
        body, code = data[: _RANDOM + _EXPIRY], data[_RANDOM + _EXPIRY :]
        if not hmac.compare_digest(code, self._code("handle", body, owner, scope)):
            raise InvalidSessionId
        expires = int.from_bytes(body[_RANDOM:], "big") * 60.0
        if expires <= now:
            raise InvalidSessionId
        return f"mcp-{self._code('key', body, owner, scope).hex()}", expires

    def derive_key(self, owner: Owner, scope: str, *parts: str) -> str:
        """Return the key of the session that an owner's client names by some words of its own."""
        return f"mcp-{self._code('derived', msgspec.json.encode(parts), owner, scope).hex()}"

    def _code(self, purpose: str, body: bytes, owner: Owner, scope: str) -> bytes:
        signed = msgspec.json.encode((purpose, body, owner.tenant, owner.principal, scope))
        return hashlib.blake2b(signed, key=self._code_key, digest_size=_CODE).digest()


def is_handle(text: str) -> bool:
    """Return whether a text has the form of a handle, whoever made it."""
    return _HANDLE.fullmatch(text) is not None

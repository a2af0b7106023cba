"""Proofs of possession (DPoP, RFC 9449): a request shows that its sender has the key of its token.

A token that is bound to a key is of no use to whoever has seen it only. The key is made for one
token, or for one login, and leaves the worker no more than the token does: it is sealed beside it.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from leaseway.wire import bounds

PROOF_ALGORITHMS: Final = ("ES256", "Ed25519", "ES384", "PS256", "RS256")
"""Signatures of proofs, the preferred one first."""
USE_NONCE: Final = "use_dpop_nonce"
"""The error of a request whose proof needs the nonce of the response (RFC 9449, section 8)."""
PROOF_HEADER: Final = "DPoP"
_NONCE_HEADER: Final = "dpop-nonce"


@dataclass(frozen=True)
class ProofKey:
    """The private key of one token or login. Its representation does not show it.

    Attributes:
        algorithm: How it signs.
        jwk: The key as a JSON Web Key.
    """

    algorithm: str
    jwk: Mapping[str, Any] = field(repr=False)

    @classmethod
    def create(cls, algorithm: str) -> ProofKey:
        """Return a new key for one of `PROOF_ALGORITHMS`."""
        from joserfc.jwk import ECKey, OKPKey, RSAKey

        key: ECKey | OKPKey | RSAKey
        match algorithm:
            case "ES256":
                key = ECKey.generate_key("P-256")
            case "ES384":
                key = ECKey.generate_key("P-384")
            case "Ed25519":
                key = OKPKey.generate_key("Ed25519")
            case _:
                key = RSAKey.generate_key(2_048)
        return cls(algorithm, dict(key.as_dict(private=True)))

    @cached_property
    def _key(self) -> Any:
        from joserfc.jwk import import_key

        return import_key(dict(self.jwk))

    @cached_property
    def _header(self) -> dict[str, Any]:
        public = dict(self._key.as_dict(private=False))
        return {"typ": "dpop+jwt", "alg": self.algorithm, "jwk": public}

    @property
    def thumbprint(self) -> str:
        """What an authorization server binds a code to (`dpop_jkt`)."""
        return str(self._key.thumbprint())

    @property
    def secret(self) -> str:
        """What must appear nowhere."""
        return str(self.jwk["d"])

    def proof(self, method: str, url: str, *, token: str = "", nonce: str = "") -> str:
        """Return the proof for one request; it is never used again.

        Args:
            method: Of the request.
            url: Its address; the proof is without its query.
            token: The access token that it presents, or empty.
            nonce: The newest one of whoever receives it, or empty.
        """
        from joserfc import jwt

        claims: dict[str, Any] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": urlunsplit(urlsplit(url)._replace(query="", fragment="")),
            "iat": int(time.time()),
        }
        if token:
            digest = hashlib.sha256(token.encode()).digest()
            claims["ath"] = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if nonce:
            claims["nonce"] = nonce
        return jwt.encode(dict(self._header), claims, self._key, algorithms=[self.algorithm])


def choose_algorithm(*accepted: Sequence[str]) -> str:
    """Return an algorithm that is in each of some lists; empty lists accept all. Empty for none."""
    lists = [names for names in accepted if names]
    return next((name for name in PROOF_ALGORITHMS if all(name in names for names in lists)), "")


def nonce_of(headers: Mapping[str, str]) -> str:
    """Return the nonce for the next proof that a response gives, or empty."""
    nonce = headers.get(_NONCE_HEADER, "")
    is_usable = len(nonce) <= bounds.MAX_OAUTH_NONCE and all(
        "!" <= character <= "~" and character not in '"\\' for character in nonce
    )
    return nonce if is_usable else ""

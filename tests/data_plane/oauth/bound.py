"""An MCP server that accepts tokens that are bound to a key only, with a proof for each request."""

from __future__ import annotations

import base64
import hashlib
import time
from typing import Any

from aiohttp import web
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey
from tests.data_plane.oauth.authority import Resource


class Bound(Resource):
    """Checks proofs as RFC 9449, section 4.3, says; each needs the newest nonce.

    Attributes:
        faults: What was wrong with the proofs of requests.
        proofs: The ids of all proofs.
        nonce: The newest nonce; empty for none.
        challenged: How many requests had another nonce.
        accepts_nonces: Whether any proof is good enough.
        is_single: Whether every response brings another nonce.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.proofs: list[str] = []
        self.nonce = ""
        self.challenged = 0
        self.accepts_nonces = True
        self.is_single = False

    async def prepare(self, request: web.Request, response: web.StreamResponse) -> None:
        if self.is_single:
            self.nonce = f"nonce-{len(self.proofs)}-{self.challenged}"
        if self.nonce and not request.path.startswith("/.well-known"):
            response.headers["DPoP-Nonce"] = self.nonce

    def _refusal(self, request: web.Request, path: str, method: str = "") -> web.Response | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        metadata = f'resource_metadata="{self.base}/.well-known/oauth-protected-resource/{path}"'
        if not scheme:
            said = f'Basic realm="a, b", DPoP algs="ES256 ES384", {metadata}'
            return web.Response(status=401, headers={"WWW-Authenticate": said})
        error = self._fault(request, scheme, token)
        if error == "use_dpop_nonce":
            self.challenged += 1
        elif error:
            self.faults.append(error)
        if not error:
            return None
        code = error if error == "use_dpop_nonce" else "invalid_token"
        said = f'DPoP error="{code}", {metadata}'
        return web.Response(status=401, headers={"WWW-Authenticate": said})

    def _fault(self, request: web.Request, scheme: str, token: str) -> str:
        claims = self.claims(token)
        proofs = request.headers.getall("DPoP", [])
        if scheme != "DPoP" or claims is None or len(proofs) != 1:
            return f"the scheme {scheme}, the claims {claims}, {len(proofs)} proofs"
        key = ECKey.import_key(header_of(proofs[0])["jwk"])
        try:
            proof = jwt.decode(proofs[0], key, algorithms=["ES256"])
        except JoseError as error:
            return str(error)
        digest = hashlib.sha256(token.encode()).digest()
        expected = {
            "htm": request.method,
            "htu": str(request.url.with_query(None)),
            "ath": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
        }
        said = {name: proof.claims.get(name) for name in expected}
        is_bound = claims["cnf"] == {"jkt": key.thumbprint()}
        is_new = proof.claims["jti"] not in self.proofs
        if said != expected or not is_bound or not is_new or key.is_private:
            return f"{said} instead of {expected}, bound: {is_bound}, new: {is_new}"
        if proof.header["typ"] != "dpop+jwt" or abs(proof.claims["iat"] - time.time()) > 60:
            return f"{proof.header}, {proof.claims}"
        if not self.accepts_nonces or proof.claims.get("nonce", "") != self.nonce:
            return "use_dpop_nonce"
        self.proofs.append(proof.claims["jti"])
        return ""

    def name_of(self, token: str) -> str:
        return super().name_of(token.removeprefix("DPoP "))


def header_of(proof: str) -> dict[str, Any]:
    """Return the header of a proof, which has the public key."""
    from joserfc import jws

    return dict(jws.extract_compact(proof.encode()).headers())

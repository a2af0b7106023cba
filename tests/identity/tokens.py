"""Tokens of an issuer, its keys, and the file that trusts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import ECKey, KeySet, OKPKey

NOW = 1_800_000_000.0
IDENTITY = """
[[jwt]]
issuer = "https://login.example"
audience = "leaseway"
jwks = "jwks.json"
agent_claim = "azp"
roles_claim = "roles"
"""


def ec_key(key_id: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": key_id, "use": "sig"}, private=True)


def publish(folder: Path, *keys: ECKey | OKPKey) -> None:
    document = KeySet(list(keys)).as_dict(private=False)
    (folder / "jwks.json").write_text(json.dumps(document))


def token(key: Any, algorithm: str = "ES256", **changes: object) -> str:
    claims: dict[str, object] = {
        "iss": "https://login.example",
        "aud": "leaseway",
        "sub": "alice",
        "exp": int(NOW) + 600,
        "tenant": "acme",
        "azp": "billing",
    }
    claims.update(changes)
    present = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": key.kid}, present, key, algorithms=[algorithm])

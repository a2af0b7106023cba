"""The headers of tokens, which differ between issuers."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from joserfc import jwt
from joserfc.jwk import OKPKey
from tests.identity.tokens import IDENTITY, NOW, ec_key, publish, token

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.signatures import Signatures
from leaseway.identity.tokens import JwkSet
from leaseway.wire.errors import Fault


def trusting(folder: Path) -> Authenticator:
    (folder / "identity.toml").write_text(IDENTITY)
    return Authenticator(identity=folder / "identity.toml", now=lambda: NOW, clock=lambda: NOW)


async def test_members_of_a_header_that_nobody_here_knows_are_ignored_unless_they_are_critical(
    tmp_path: Path,
) -> None:
    key = ec_key("first")
    publish(tmp_path, key)
    auth = trusting(tmp_path)
    claims = jwt.decode(token(key), key).claims
    header = {"alg": "ES256", "kid": "first", "pi.atm": "1", "tty": "own", "x5c": ["A" * 3_000]}
    sent = jwt.encode(header, claims, key, registry=Signatures(["ES256"]))
    assert (await auth.principal(f"Bearer {sent}")).tenant == "acme"
    critical = json.dumps({**header, "crit": ["pi.atm"]}).encode()
    head = base64.urlsafe_b64encode(critical).decode().rstrip("=")
    with pytest.raises(Fault):
        await auth.principal(f"Bearer {'.'.join((head, *sent.split('.')[1:]))}")


@pytest.mark.parametrize("algorithm", ["EdDSA", "Ed25519"])
async def test_an_issuer_may_call_its_signatures_by_the_older_name(
    tmp_path: Path, algorithm: str
) -> None:
    key = OKPKey.generate_key("Ed25519", {"kid": "first"})
    publish(tmp_path, key)
    claims = jwt.decode(token(key, "Ed25519"), key, algorithms=["Ed25519"]).claims
    header = {"alg": algorithm, "kid": "first"}
    sent = jwt.encode(header, claims, key, registry=Signatures([algorithm]))
    assert (await trusting(tmp_path).principal(f"Bearer {sent}")).tenant == "acme"


def test_the_key_that_a_token_names_is_found_behind_many_without_a_name() -> None:
    named = ec_key("first").as_dict(private=False)
    nameless = {name: value for name, value in named.items() if name != "kid"}
    keys = JwkSet({"keys": [*[nameless] * 20, named]})
    assert keys.candidates("first", "ES256")[0].kid == "first"

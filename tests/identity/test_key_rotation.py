"""Keys of an issuer on the web, which it replaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey
from tests.identity.tokens import IDENTITY, NOW, ec_key, token

from leaseway.identity.authenticator import Authenticator
from leaseway.telemetry.http_listener import refusal_of
from leaseway.wire.errors import Fault


class Issuing:
    """An issuer on the web.

    Attributes:
        keys: Its keys.
        are_named: Whether they have ids.
        reads: How often they were read.
        at: The time.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: list[ECKey] = []
        self.are_named = True
        self.reads = 0
        self.at = NOW
        address = IDENTITY.replace("jwks.json", "https://login.example/keys")
        (folder / "identity.toml").write_text(address)
        monkeypatch.setattr("leaseway.identity.tokens._load", self._load)
        self.auth = Authenticator(
            identity=folder / "identity.toml", now=lambda: NOW, clock=lambda: self.at
        )

    def _load(self, _location: str) -> bytes:
        self.reads += 1
        entries: list[dict[str, Any]] = [dict(key.as_dict(private=False)) for key in self.keys]
        if not self.are_named:
            entries = [{**entry, "kid": None} for entry in entries]
        return json.dumps({"keys": entries}).encode()

    async def status(self, token: str) -> int:
        """Return the HTTP status of a request with a token."""
        try:
            await self.auth.principal(f"Bearer {token}")
        except Fault as fault:
            return refusal_of(fault).status
        return 200


@pytest.fixture
def issuing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Issuing:
    return Issuing(tmp_path, monkeypatch)


async def test_a_token_of_a_key_newer_than_the_last_read_is_not_called_invalid(
    issuing: Issuing,
) -> None:
    old, new = ec_key("first"), ec_key("second")
    issuing.keys = [old]
    assert await issuing.status(token(old)) == 200
    issuing.keys = [new]
    assert await issuing.status(token(new)) == 503
    issuing.at += 11
    assert await issuing.status(token(new)) == 200
    assert await issuing.status(token(old, sub="bob")) == 401
    assert issuing.reads == 2


@pytest.mark.parametrize("key_id", ["gone", "g" * 300])
async def test_a_token_of_a_key_that_was_looked_for_in_vain_is_invalid(
    issuing: Issuing, key_id: str
) -> None:
    key, gone = ec_key("first"), ec_key(key_id)
    issuing.keys = [key]
    for expected in (401, 401):
        assert await issuing.status(token(gone)) == expected
    assert issuing.reads == 1


def unnamed(key: ECKey, subject: str) -> str:
    claims = jwt.decode(token(key, sub=subject), key).claims
    return jwt.encode({"alg": "ES256"}, claims, key)


async def test_keys_are_read_again_for_a_token_without_a_key_id_that_none_has_signed(
    issuing: Issuing,
) -> None:
    old, new = ec_key("first"), ec_key("second")
    issuing.keys = [old]
    assert await issuing.status(unnamed(old, "alice")) == 200
    issuing.keys = [new]
    issuing.at += 11
    assert await issuing.status(unnamed(new, "bob")) == 200
    assert await issuing.status(unnamed(old, "carol")) == 401
    assert issuing.reads == 2


async def test_a_key_without_an_id_verifies_tokens_that_name_one(issuing: Issuing) -> None:
    key = ec_key("first")
    issuing.keys = [key]
    issuing.are_named = False
    assert await issuing.status(token(key)) == 200
    assert await issuing.status(token(ec_key("first"))) == 401

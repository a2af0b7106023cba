"""A chain of actors is kept by an exchange at a real authorization server (npm oidc-provider)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey
from tests.conftest import BOUND
from tests.data_plane.oauth.authority import SECRET, Resource, provider
from tests.e2e.system import eventually, running

from leaseway.sdk import AsyncClient, AuthorizationFailed

pytestmark = pytest.mark.usefixtures("leak_guard")


class Claiming(Resource):
    """Says whose token it gets, and who acts."""

    def name_of(self, token: str) -> str:
        claims = self.claims(token) or {}
        names, actor = [str(claims.get("sub"))], claims.get("act")
        while actor:
            names.append(str(actor["sub"]))
            actor = actor.get("act")
        return " < ".join(names)


def signed(key: RSAKey, **claims: Any) -> str:
    return jwt.encode({"alg": "RS256"}, {**claims, "exp": int(time.time()) + 600}, key)


async def is_listed(client: AsyncClient) -> bool:
    return bool(await client.list_tools())


async def test_who_acts_for_a_caller_joins_the_chain_of_actors(tmp_path: Path) -> None:
    key = RSAKey.generate_key(2_048)
    subjects = key.as_dict(private=False)
    async with provider(subjects=subjects) as authority, Claiming() as resource:
        await resource.trust(authority)
        exchange = {"client_id": "service", "client_secret": {"env": "WORD"}}
        entry = {
            "transport": "streamable_http",
            "url": f"{resource.base}/mcp",
            "truely-stateless": True,
            "auth": {"token_exchange": exchange},
        }
        actor = {**exchange, "actor_token": {"env": "ACTOR"}}
        servers = {
            "plain": {**entry, "transform": [{"prefix": "plain_"}]},
            "acting": {**entry, "auth": {"token_exchange": actor}},
        }
        environment = {"WORD": SECRET, "ACTOR": signed(key, sub="gateway")}
        async with running(tmp_path, servers, environment=environment) as (_, client):
            await eventually(lambda: is_listed(client))
            alone = signed(key, sub="alice")
            chain = signed(key, sub="alice", act={"sub": "portal", "act": {"sub": "app"}})

            async def who(tool: str, token: str) -> str:
                result = await client.call_tool(tool, subject_token=token, timeout=BOUND)
                return result.text

            assert await who("plain_whoami", alone) == "alice < service"
            assert await who("whoami", alone) == "alice < gateway"
            assert await who("whoami", chain) == "alice < gateway < portal < app"
            with pytest.raises(AuthorizationFailed, match="call again with a valid one"):
                await who("whoami", signed(RSAKey.generate_key(2_048), sub="mallory"))

"""Replacing certificates, API keys and issuers' keys under load fails no call."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import Authority
from tests.conftest import BOUND
from tests.e2e.system import eventually
from tests.identity.tokens import IDENTITY, NOW, ec_key, publish, token
from tests.wire.channels.one_rpc import serving

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.interceptor import IdentityInterceptor
from leaseway.identity.keys import add_key, make_key, revoke_key
from leaseway.identity.principal import Role
from leaseway.wire.channels.tls import open_channel

ROTATIONS = 3
CALLERS = 4


class Load:
    """Callers that open a connection for every few calls, with the current credential."""

    def __init__(self, address: str, credential: str) -> None:
        self.credential = credential
        self.last: dict[int, str] = {}
        self._address = address

    async def run(self, number: int) -> None:
        while True:
            async with open_channel(self._address, ()) as channel:
                call: Any = channel.unary_unary("/leaseway.v1.AdminService/GetStatus")
                for _ in range(5):
                    credential = self.credential
                    sent = (("authorization", f"Bearer {credential}"),)
                    async with asyncio.timeout(BOUND):
                        answer = await call(b"", metadata=sent)
                    assert answer == b"acme"
                    self.last[number] = credential

    async def wait_all_switched(self, task: asyncio.Future[list[None]]) -> None:
        """Wait until each caller has made a call with the current credential."""
        self.last.clear()
        await eventually(
            lambda: (
                task.done()
                or (len(self.last) == CALLERS and set(self.last.values()) == {self.credential})
            )
        )


async def test_no_call_fails_while_certificates_and_credentials_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority("ours")
    certificate, key_file = authority.issue(tmp_path, "server")
    monkeypatch.setenv("LEASEWAY_TLS_CA", str(authority.write(tmp_path / "ca.pem")))
    monkeypatch.setenv("LEASEWAY_TLS_CERT", str(certificate))
    monkeypatch.setenv("LEASEWAY_TLS_KEY", str(key_file))
    signer = ec_key("0")
    publish(tmp_path, signer)
    keys = tmp_path / "keys.json"
    first, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=0.0)
    add_key(keys, record)
    (tmp_path / "identity.toml").write_text(f'keys = "keys.json"\n{IDENTITY}')
    authenticator = Authenticator(identity=tmp_path / "identity.toml", now=lambda: NOW)
    async with serving(IdentityInterceptor(authenticator)) as address:
        loads = [Load(address, first), Load(address, token(signer))]
        running = asyncio.gather(
            authenticator.run(), *(load.run(n) for load in loads for n in range(CALLERS))
        )
        try:
            for number in range(1, ROTATIONS + 1):
                authority.issue(tmp_path, "server")  # the certificate first, then its key
                new, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=0.0)
                add_key(keys, record)
                newer = ec_key(str(number))
                publish(tmp_path, signer, newer)  # both, so that older tokens stay valid
                old, loads[0].credential = loads[0].credential, new
                loads[1].credential, signer = token(newer), newer
                for load in loads:
                    await load.wait_all_switched(running)
                revoke_key(keys, old[4:12], 0.0)
                for load in loads:
                    await load.wait_all_switched(running)
            if running.done():
                await running
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

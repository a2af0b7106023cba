"""Files that decide who may do what are refused if other users of the machine can change them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.certificates import Authority

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.keys import KeyFileError, add_key, make_key
from leaseway.identity.principal import Role
from leaseway.identity.settings import IdentityFileError
from leaseway.wire.channels.tls import Tls, server_credentials
from leaseway.wire.errors import Fault

TABLE = '[[jwt]]\nissuer = "i"\naudience = "a"\njwks = "jwks.json"\n'
TOKEN = "Bearer eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJpIn0.AAAA"  # of the issuer i
MODES = [0o666, 0o620, 0o602]


@pytest.mark.parametrize("mode", MODES)
async def test_keys_and_identity_that_others_can_change_are_refused(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    _, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=0.0)
    keys, identity, jwks = (tmp_path / name for name in ("keys.json", "identity.toml", "jwks.json"))
    add_key(keys, record)
    identity.write_text(TABLE)
    jwks.write_text('{"keys": []}')
    start: Callable[[], Authenticator] = lambda: Authenticator(  # noqa: E731
        identity=identity, keys=keys
    )
    keys.chmod(mode)
    with pytest.raises(KeyFileError, match="can be changed by other users"):
        start()
    keys.chmod(0o600)
    identity.chmod(mode)
    with pytest.raises(IdentityFileError, match="can be changed by other users"):
        start()
    identity.chmod(0o644)
    jwks.chmod(mode)
    with pytest.raises(Fault, match="cannot be checked"):
        await start().principal(TOKEN)
    assert "can be changed by other users" in caplog.text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", ["certificate", "key", "client_ca"])
def test_tls_files_that_others_can_change_are_refused(
    tmp_path: Path, which: str, mode: int
) -> None:
    authority = Authority("ours")
    certificate, key = authority.issue(tmp_path, "server")
    tls = Tls(
        certificate=certificate, key=key, client_ca=authority.write(tmp_path / "client-ca.pem")
    )
    server_credentials(tls)
    path: Path = getattr(tls, which)
    path.chmod(mode)
    with pytest.raises(ValueError, match="can be changed by other users"):
        server_credentials(tls)


async def test_a_key_file_is_used_once_it_is_closed_again(tmp_path: Path) -> None:
    first, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=0.0)
    second, other = make_key(roles=[Role.CALLER], tenant="beta", agent=None, now=0.0)
    keys = tmp_path / "keys.json"
    add_key(keys, record)
    auth = Authenticator(keys=keys)
    keys.chmod(0o600)
    add_key(keys, other)
    keys.chmod(0o666)
    await auth.refresh()
    assert (await auth.principal(f"Bearer {first}")).tenant == "acme", "what was valid stays"
    with pytest.raises(Fault, match="unknown"):
        await auth.principal(f"Bearer {second}")
    keys.chmod(0o600)
    await auth.refresh()
    assert (await auth.principal(f"Bearer {second}")).tenant == "beta"

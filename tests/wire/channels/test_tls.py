"""TLS: both ends are authenticated, and changed files are used without a failed call."""

from __future__ import annotations

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from tests.certificates import Authority
from tests.conftest import BOUND
from tests.forward_proxy import ForwardProxy
from tests.wire.channels.one_rpc import serving

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.interceptor import IdentityInterceptor
from leaseway.wire.channels.auth import key_path
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.channels.serving import bind, make_server
from leaseway.wire.channels.tls import (
    Tls,
    cause_in_tls,
    hint_at_tls,
    open_channel,
    read_client_tls,
    read_tls,
    server_context,
)


async def ask(address: str) -> bytes:
    async with asyncio.timeout(BOUND), open_channel(address, ()) as channel:
        call: Any = channel.unary_unary("/leaseway.v1.AdminService/GetStatus")
        answer: bytes = await call(b"", wait_for_ready=False)
        return answer


async def test_only_a_proxy_that_is_meant_for_planes_is_used_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ForwardProxy().running() as proxy, serving() as address:
        elsewhere = f"planes.invalid:{address.rpartition(':')[2]}"
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        assert await ask(address) == b"nobody"
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(elsewhere)
        monkeypatch.setenv("grpc_proxy", proxy.url)
        assert await ask(address) == b"nobody"
        assert not proxy.seen
        assert await ask(elsewhere) == b"nobody"
        assert proxy.seen == [f"CONNECT {elsewhere}"]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    authority = Authority("ours")
    certificate, key = authority.issue(tmp_path, "server")
    monkeypatch.setenv("LEASEWAY_TLS_CA", str(authority.write(tmp_path / "ca.pem")))
    monkeypatch.setenv("LEASEWAY_TLS_CERT", str(certificate))
    monkeypatch.setenv("LEASEWAY_TLS_KEY", str(key))
    return authority


@pytest.mark.usefixtures("authority")
async def test_a_listener_with_a_certificate_is_reached_by_tls_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving() as address:
        assert await ask(address) == b"nobody"
        monkeypatch.delenv("LEASEWAY_TLS_CA")
        with pytest.raises(grpc.aio.AioRpcError):
            await ask(address)


@pytest.mark.usefixtures("authority")
async def test_a_listener_of_another_authority_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as address:
        other = Authority("theirs").write(tmp_path / "other.pem")
        monkeypatch.setenv("LEASEWAY_TLS_CA", str(other))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(address)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def by_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IdentityInterceptor:
    """Identify callers by their certificates."""
    monkeypatch.setenv("LEASEWAY_TLS_CLIENT_CA", str(tmp_path / "ca.pem"))
    identity = tmp_path / "identity.toml"
    identity.write_text('[[mtls]]\nmatch = "spiffe://prod/ns/{tenant}/sa/x"\n')
    return IdentityInterceptor(Authenticator(identity=identity))


async def test_a_client_certificate_identifies_the_caller(
    authority: Authority,
    by_certificate: IdentityInterceptor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    certificate, key = authority.issue(tmp_path, "client", "spiffe://prod/ns/acme/sa/x")
    async with serving(by_certificate) as address:
        monkeypatch.setenv("LEASEWAY_TLS_CERT", str(certificate))
        monkeypatch.setenv("LEASEWAY_TLS_KEY", str(key))
        assert await ask(address) == b"acme"
        stranger, its_key = Authority("theirs").issue(tmp_path, "stranger")
        monkeypatch.setenv("LEASEWAY_TLS_CERT", str(stranger))
        monkeypatch.setenv("LEASEWAY_TLS_KEY", str(its_key))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await ask(address)
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_is_replaced_during_calls(authority: Authority, tmp_path: Path) -> None:
    async with serving() as address:
        before = await asyncio.to_thread(shown_by, address)
        for number in range(3):
            await asyncio.gather(*(ask(address) for _ in range(5)))
            authority.issue(tmp_path, "server")  # the certificate first, then its key
            await asyncio.gather(*(ask(address) for _ in range(5)))
            assert await asyncio.to_thread(shown_by, address) != before, number
            before = await asyncio.to_thread(shown_by, address)


async def test_a_client_follows_a_new_authority_and_a_new_certificate_of_its_own(
    authority: Authority,
    by_certificate: IdentityInterceptor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serving(by_certificate) as address, asyncio.timeout(BOUND):
        certificate, key = authority.issue(tmp_path, "client", "spiffe://prod/ns/acme/sa/x")
        monkeypatch.setenv("LEASEWAY_TLS_CERT", str(certificate))
        monkeypatch.setenv("LEASEWAY_TLS_KEY", str(key))
        async with open_channel(address, ()) as channel:
            call: Any = channel.unary_unary("/leaseway.v1.AdminService/GetStatus")
            assert await call(b"") == b"acme"
            successor = Authority("ours from now on")
            successor.write(tmp_path / "ca.pem")
            successor.issue(tmp_path, "server")
            # Only the authority matches so far: the open connection is used.
            key.rename(tmp_path / "kept.key")
            assert await call(b"") == b"acme"
            successor.issue(tmp_path, "client", "spiffe://prod/ns/globex/sa/x")
            assert await call(b"") == b"globex"


async def test_the_old_certificate_is_used_until_the_key_matches(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving() as address:
        before = await asyncio.to_thread(shown_by, address)
        key = (tmp_path / "server.key").read_bytes()
        authority.issue(tmp_path, "server")
        fresh = (tmp_path / "server.key").read_bytes()
        (tmp_path / "server.key").write_bytes(key)
        assert await asyncio.to_thread(shown_by, address) == before
        (tmp_path / "server.key").write_bytes(fresh)
        assert await asyncio.to_thread(shown_by, address) != before


def shown_by(address: str) -> str:
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=BOUND)


async def test_an_http_listener_uses_a_new_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context(read_tls()))
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        before = await asyncio.to_thread(shown_by, address)
        authority.issue(tmp_path, "server")
        assert await asyncio.to_thread(shown_by, address) != before


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"LEASEWAY_TLS_CERT": "x"}, "Set both"),
        ({"LEASEWAY_TLS_KEY": "x"}, "Set both"),
        ({"LEASEWAY_TLS_CLIENT_CA": "x"}, "for listeners with a certificate"),
    ],
)
def test_contradicting_settings_are_rejected(environment: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_tls(environment)


def test_without_settings_tls_is_off() -> None:
    assert read_tls({}) == Tls()


async def test_an_unreadable_certificate_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEWAY_TLS_CERT", str(tmp_path / "none.pem"))
    monkeypatch.setenv("LEASEWAY_TLS_KEY", str(tmp_path / "none.key"))
    with pytest.raises(ValueError, match=r"none\.pem"):
        bind(make_server(), Endpoint("127.0.0.1", 0))


async def test_authorities_may_have_comments_and_line_ends_of_other_systems(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Authority("theirs").write(tmp_path / "theirs.pem").read_text()
    ours = authority.write(tmp_path / "ca.pem").read_text()
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"\ufeff{theirs}\nIssuer: ours é\n{ours}".replace("\n", "\r\n"))
    async with serving() as address:
        monkeypatch.setenv("LEASEWAY_TLS_CA", str(bundle))
        assert await ask(address) == b"nobody"


@pytest.mark.parametrize(
    "content",
    ["", "garbage", "  {pem}", "{pem}-----BEGIN CERTIFICATE-----\nAAAA\n"],
)
def test_authorities_that_cannot_be_read_are_refused_before_a_connection(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    authority.write(tmp_path / "ca.pem")
    pem = (tmp_path / "ca.pem").read_text()
    broken = tmp_path / "broken.pem"
    broken.write_text(content.replace("{pem}", pem))
    monkeypatch.setenv("LEASEWAY_TLS_CA", str(broken))
    with pytest.raises(ValueError, match=r"broken\.pem \(LEASEWAY_TLS_CA\) holds no cert"):
        read_client_tls()


def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = authority.issue(tmp_path, "client")
    own = load_pem_private_key(key.read_bytes(), None)
    locked = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x"))
    key.write_bytes(locked)
    authority.write(tmp_path / "ca.pem")
    monkeypatch.setenv("LEASEWAY_TLS_CA", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("LEASEWAY_TLS_CERT", str(certificate))
    monkeypatch.setenv("LEASEWAY_TLS_KEY", str(key))
    with pytest.raises(ValueError, match="must have no password"):
        read_client_tls()
    with pytest.raises(ValueError, match="must have no password"):
        server_context(read_tls())


def test_files_are_named_from_the_folder_and_the_home_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    tls = read_tls(
        {
            "LEASEWAY_TLS_CA": "ca.pem",
            "LEASEWAY_TLS_CERT": "~/me.pem",
            "LEASEWAY_TLS_KEY": "~/me.key\n",
        }
    )
    assert tls.ca == tmp_path / "ca.pem"
    assert (tls.certificate, tls.key) == (Path("/home/me/me.pem"), Path("/home/me/me.key"))


def test_a_home_folder_that_nobody_has_is_named_with_its_variable() -> None:
    with pytest.raises(ValueError, match=r"LEASEWAY_TLS_CA names ~no-such-user/ca\.pem"):
        read_tls({"LEASEWAY_TLS_CA": "~no-such-user/ca.pem"})
    with pytest.raises(ValueError, match="LEASEWAY_KEY_FILE names ~no-such-user/key"):
        key_path({"LEASEWAY_KEY_FILE": "~no-such-user/key"})


@pytest.mark.parametrize("said", ["Socket closed", "recvmsg:Connection reset by peer"])
def test_a_closed_connection_is_explained_however_grpc_says_it(said: str) -> None:
    details = f"failed to connect to all addresses; last error: UNAVAILABLE: ipv4:::1: {said}"
    secure = {"LEASEWAY_TLS_CA": "ca.pem"}
    own = {**secure, "LEASEWAY_TLS_CERT": "me.pem", "LEASEWAY_TLS_KEY": "me.key"}
    assert "set LEASEWAY_TLS_CA" in hint_at_tls(details, {})
    assert "set LEASEWAY_TLS_CERT" in hint_at_tls(details, secure)
    assert "may not accept the one in LEASEWAY_TLS_CERT" in hint_at_tls(details, own)
    assert hint_at_tls(said, {}) == ""


async def cause_at(address: str) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(address)
    details = raised.value.details() or ""
    return cause_in_tls(details) or hint_at_tls(details)


async def test_an_error_says_why_tls_keeps_a_client_from_connecting(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as address:
        monkeypatch.setenv("LEASEWAY_TLS_NAME", "elsewhere")
        assert "set LEASEWAY_TLS_NAME" in await cause_at(address)
        monkeypatch.delenv("LEASEWAY_TLS_NAME")
        theirs = Authority("theirs").write(tmp_path / "theirs.pem")
        monkeypatch.setenv("LEASEWAY_TLS_CA", str(theirs))
        assert "No authority in LEASEWAY_TLS_CA" in await cause_at(address)
        monkeypatch.delenv("LEASEWAY_TLS_CA")
        assert "set LEASEWAY_TLS_CA" in await cause_at(address)
    monkeypatch.setenv("LEASEWAY_TLS_CLIENT_CA", str(tmp_path / "ca.pem"))
    async with serving() as address:
        for variable in ("CERT", "KEY", "CLIENT_CA"):
            monkeypatch.delenv(f"LEASEWAY_TLS_{variable}")
        monkeypatch.setenv("LEASEWAY_TLS_CA", str(authority.write(tmp_path / "ca.pem")))
        assert "set LEASEWAY_TLS_CERT" in await cause_at(address)
    monkeypatch.delenv("LEASEWAY_TLS_CA")
    async with serving() as address:
        monkeypatch.setenv("LEASEWAY_TLS_CA", str(tmp_path / "ca.pem"))
        assert "It does not use TLS" in await cause_at(address)
    assert await cause_at("127.0.0.1:1") == ""


async def test_an_error_says_that_a_certificate_is_not_valid_yet(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority.issue(tmp_path, "server", start=datetime.now(UTC) + timedelta(hours=1))
    async with serving() as address:
        monkeypatch.setenv("LEASEWAY_TLS_CA", str(authority.write(tmp_path / "ca.pem")))
        assert "compare the clocks" in await cause_at(address)

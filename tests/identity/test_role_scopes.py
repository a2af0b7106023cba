"""Every RPC for every role of API keys, tokens and certificates, with and without a tenant."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from joserfc import jwt
from joserfc.jwk import ECKey, KeySet

from leaseway.identity.authenticator import Authenticator, authenticator_for
from leaseway.identity.keys import KeyRecord, add_key, make_key
from leaseway.identity.principal import Role
from leaseway.identity.rules import RULES, authorize
from leaseway.identity.settings import IdentityFileError
from leaseway.v1 import admin_pb2, catalog_pb2, execution_pb2, leases_pb2, sync_pb2
from leaseway.wire.errors import Fault

NOW: Final = 1_800_000_000.0
RPCS: Final = [
    f"/{service.full_name}/{method.name}"
    for module in (admin_pb2, catalog_pb2, execution_pb2, leases_pb2, sync_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
SYNC: Final = "/leaseway.v1.SyncService/Sync"
OF_ALL_TENANTS: Final = {Role.OPERATOR, Role.VIEWER, Role.PLANE}
ISSUER_KEY: Final = ECKey.generate_key("P-256", {"kid": "k", "use": "sig"}, private=True)
ISSUERS: Final = {
    "of a tenant": 'tenant = "beta"',
    "of all tenants": "",
    "of callers": 'roles = ["caller", "approver"]',
}


@dataclass(frozen=True)
class Sent:
    """A credential as a request carries it."""

    authorization: str | None
    certificate: bytes | None = None


def identity_file() -> str:
    tables = [
        f'[[jwt]]\nissuer = "https://{name.replace(" ", "-")}"\naudience = "leaseway"\n'
        f'jwks = "jwks.json"\nroles_claim = "roles"\n{settings}\n'
        for name, settings in ISSUERS.items()
    ]
    rules = [
        f'[[mtls]]\nmatch = "CN={role}-*"\nroles = ["{role}"]\n'
        for role in Role
        if role is not Role.CALLER
    ]
    of_tenants = [
        f'[[mtls]]\nmatch = "spiffe://{role}/{{tenant}}"\nroles = ["{role}"]\n'
        for role in Role
        if role not in OF_ALL_TENANTS
    ]
    return "".join([*tables, *rules, *of_tenants])


def token(issuer: str, role: Role, tenant: str | None) -> Sent:
    claims: dict[str, object] = {
        "iss": f"https://{issuer.replace(' ', '-')}",
        "aud": "leaseway",
        "exp": int(NOW) + 600,
        "roles": [role.value],
    }
    if tenant is not None:
        claims["tenant"] = tenant
    return Sent("Bearer " + jwt.encode({"alg": "ES256", "kid": "k"}, claims, ISSUER_KEY))


@cache
def certificate(common_name: str, uri: str | None = None) -> Sent:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(
        name, name, key.public_key(), 1, start, start + datetime.timedelta(days=3650)
    )
    if uri is not None:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
        builder = builder.add_extension(names, critical=False)
    signed = builder.sign(key, hashes.SHA256())
    return Sent(None, signed.public_bytes(serialization.Encoding.PEM))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("identity")
    (folder / "jwks.json").write_text(json.dumps(KeySet([ISSUER_KEY]).as_dict(private=False)))
    (folder / "identity.toml").write_text(identity_file())
    return folder


@pytest.fixture(scope="module")
def keys(folder: Path) -> Mapping[tuple[Role, bool], str]:
    """API keys by role and whether they have a tenant; invalid ones are written to the file."""
    made = {}
    for role in Role:
        for has_tenant in (False, True):
            if role is Role.CALLER and not has_tenant:
                continue
            allowed = has_tenant and role not in OF_ALL_TENANTS
            key, record = make_key(
                roles=[role], tenant="beta" if allowed else None, agent=None, now=NOW
            )
            if has_tenant and not allowed:
                record = KeyRecord(**{**vars(record), "tenant": "beta"})
            add_key(folder / "keys.json", record)
            made[role, has_tenant] = key
    return made


def credentials(keys: Mapping[tuple[Role, bool], str], role: Role) -> dict[str, tuple[Sent, bool]]:
    """Return the credentials that claim a role, and whether they have a tenant."""
    found = {
        "key": (Sent(f"Bearer {keys[role, True]}"), True),
        "token of a tenant's issuer": (token("of a tenant", role, None), True),
        "token that names a tenant": (token("of all tenants", role, "acme"), True),
        "token of an issuer of callers": (token("of callers", role, "acme"), True),
    }
    if role not in OF_ALL_TENANTS:
        found["certificate"] = (certificate("x", f"spiffe://{role}/acme"), True)
    if role is not Role.CALLER:
        found |= {
            "key without a tenant": (Sent(f"Bearer {keys[role, False]}"), False),
            "certificate without a tenant": (certificate(f"{role}-1"), False),
        }
    if role in OF_ALL_TENANTS:
        found["token without a tenant"] = (token("of all tenants", role, None), False)
    return found


async def may_send(auth: Authenticator, sent: Sent) -> set[str]:
    """Return the RPCs that a credential may send."""
    try:
        principal = await auth.principal(sent.authorization, sent.certificate)
    except Fault:
        return set()
    allowed = set()
    for rpc in RPCS:
        try:
            authorize(principal, rpc)
        except Fault:
            continue
        allowed.add(rpc)
    return allowed


@pytest.mark.parametrize("worker_key", [None, "the key of workers"])
@pytest.mark.parametrize("role", list(Role))
async def test_only_credentials_without_a_tenant_reach_beyond_it(
    folder: Path, keys: Mapping[tuple[Role, bool], str], role: Role, worker_key: str | None
) -> None:
    auth = Authenticator(
        identity=folder / "identity.toml",
        keys=folder / "keys.json",
        worker_key=worker_key,
        now=lambda: NOW,
    )
    expected = {rpc for rpc in RPCS if role in RULES[rpc].roles}
    if worker_key is not None:
        expected.discard(SYNC)
    for name, (sent, has_tenant) in credentials(keys, role).items():
        refused = has_tenant and role in OF_ALL_TENANTS
        assert await may_send(auth, sent) == (set() if refused else expected), name


async def test_an_issuer_of_callers_makes_no_operator_even_without_a_tenant(folder: Path) -> None:
    auth = Authenticator(identity=folder / "identity.toml", now=lambda: NOW)
    for role in OF_ALL_TENANTS:
        assert await may_send(auth, token("of callers", role, None)) == set()


async def test_where_a_worker_key_is_set_nothing_else_joins(folder: Path) -> None:
    auth = authenticator_for(
        "the shared key", identity=folder / "identity.toml", worker_key="the key of workers"
    )
    assert SYNC not in await may_send(auth, Sent("Bearer the shared key"))
    assert await may_send(auth, Sent("Bearer the key of workers")) == {SYNC}


@pytest.mark.parametrize("role", sorted(OF_ALL_TENANTS))
@pytest.mark.parametrize(
    "table",
    [
        '[[jwt]]\nissuer = "i"\naudience = "a"\njwks = "j"\ntenant = "beta"\nroles = ["{role}"]\n',
        '[[mtls]]\nmatch = "CN=x"\ntenant = "beta"\nroles = ["{role}"]\n',
        '[[mtls]]\nmatch = "spiffe://x/{{tenant}}"\nroles = ["caller", "{role}"]\n',
    ],
)
def test_an_identity_file_cannot_give_such_a_role_a_tenant(
    tmp_path: Path, role: Role, table: str
) -> None:
    (tmp_path / "identity.toml").write_text(table.format(role=role))
    with pytest.raises(IdentityFileError, match=f"role {role} is for all tenants"):
        Authenticator(identity=tmp_path / "identity.toml")


async def test_a_callers_key_without_a_tenant_is_refused_and_costs_itself(tmp_path: Path) -> None:
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=NOW)
    good, other = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=NOW)
    add_key(tmp_path / "keys.json", KeyRecord(**{**vars(record), "tenant": None}))
    add_key(tmp_path / "keys.json", other)
    auth = Authenticator(keys=tmp_path / "keys.json", now=lambda: NOW)
    with pytest.raises(Fault, match="a caller needs a tenant"):
        await auth.principal(f"Bearer {key}")
    assert (await auth.principal(f"Bearer {good}")).tenant == "acme"


@pytest.mark.parametrize("name", ["*", "all", "..", "a/../b", " "])
async def test_no_credential_has_a_tenant_whose_name_means_something_else(
    folder: Path, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ValueError, match="tenant"):
        make_key(roles=[Role.CALLER], tenant=name, agent=None, now=NOW)
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=NOW)
    good, other = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=NOW)
    add_key(tmp_path / "keys.json", KeyRecord(**{**vars(record), "tenant": name}))
    add_key(tmp_path / "keys.json", other)
    auth = Authenticator(
        identity=folder / "identity.toml", keys=tmp_path / "keys.json", now=lambda: NOW
    )
    assert await may_send(auth, Sent(f"Bearer {key}")) == set()
    assert await may_send(auth, Sent(f"Bearer {good}")), "a bad key costs itself"
    assert await may_send(auth, token("of all tenants", Role.CALLER, name)) == set()
    assert await may_send(auth, certificate("x", f"spiffe://caller/{name}")) == set()
    for table in (
        f'[[jwt]]\nissuer = "i"\naudience = "a"\njwks = "j"\ntenant = "{name}"\n',
        f'[[mtls]]\nmatch = "CN=x"\ntenant = "{name}"\n',
    ):
        (tmp_path / "identity.toml").write_text(table)
        with pytest.raises(IdentityFileError, match="tenant"):
            Authenticator(identity=tmp_path / "identity.toml")

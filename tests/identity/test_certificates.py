"""Authentication by the names in certificates."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from leaseway.identity.authenticator import Authenticator
from leaseway.identity.certificates import CertificateRule, principal_for_names
from leaseway.identity.principal import Role
from leaseway.wire.errors import Fault, Reason


def certificate(common_name: str, *uris: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=9999))
    )
    if uris:
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris])
        builder = builder.add_extension(names, critical=False)
    made = builder.sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.PEM)


async def test_a_spiffe_id_or_a_common_name_maps_to_a_principal(tmp_path: Path) -> None:
    path = tmp_path / "identity.toml"
    path.write_text(
        '[[mtls]]\nmatch = "spiffe://prod/ns/{tenant}/sa/{agent}"\n'
        '[[mtls]]\nmatch = "CN=ops-*"\nroles = ["operator"]\n'
        '[[mtls]]\nmatch = "spiffe://people/{tenant}/{user}"\n'
    )
    auth = Authenticator(identity=path)
    principal = await auth.principal(None, certificate("pod", "spiffe://prod/ns/acme/sa/billing"))
    assert (principal.tenant, principal.agent, set(principal.roles)) == (
        "acme",
        "billing",
        {Role.CALLER},
    )
    assert (await auth.principal(None, certificate("ops-anna"))).roles == {Role.OPERATOR}
    person = await auth.principal(None, certificate("x", "spiffe://people/acme/anna"))
    assert (person.tenant, person.user) == ("acme", "anna")
    for stranger in (certificate("else"), certificate("x", "spiffe://prod/ns/a/b/sa/c"), b"junk"):
        with pytest.raises(Fault) as raised:
            await auth.principal(None, stranger)
        assert raised.value.reason is Reason.UNAUTHENTICATED


def test_a_rule_matches_only_whole_names() -> None:
    rules = [CertificateRule("spiffe://prod/ns/{tenant}/sa/x")]
    assert principal_for_names(["spiffe://prod/ns/acme/sa/x"], rules) is not None
    for near in ("spiffe://prod/ns/acme/sa/xy", "aspiffe://prod/ns/acme/sa/x", "spiffe://prodxns"):
        assert principal_for_names([near], rules) is None

"""Client certificates: which names in one stand for which tenant and agent.

TLS has checked by then that a believed authority signed the certificate and that its key is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from leaseway.identity.principal import Principal, Role, check_name

_PLACE: Final = re.compile(r"\{(tenant|agent)\}|\*")
_MOST_NAMES: Final = 64


@dataclass(frozen=True)
class CertificateRule:
    """What a name in a certificate means.

    Attributes:
        match: A SPIFFE id or `CN=NAME`; `{tenant}` and `{agent}` take what stands there, `*` any
            run of characters; none of them goes over a `/`.
        roles: What its holder may ask for.
        tenant: Its tenant; None where `match` has `{tenant}`, or where it is of none.
        agent: Its agent; None where `match` has `{agent}`, or for none.
    """

    match: str
    roles: frozenset[Role] = frozenset({Role.CALLER})
    tenant: str | None = None
    agent: str | None = None

    @property
    def expression(self) -> re.Pattern[str]:
        """The compiled form of `match`."""
        text, end = "", 0
        for place in _PLACE.finditer(self.match):
            text += re.escape(self.match[end : place.start()])
            text += f"(?P<{place[1]}>[^/]+)" if place[1] else "[^/]*"
            end = place.end()
        return re.compile(text + re.escape(self.match[end:]))


def check_rule(rule: CertificateRule) -> None:
    """Refuse a rule that gives a caller no tenant.

    Raises:
        ValueError: The message says what is missing.
    """
    if not rule.match.startswith(("spiffe://", "CN=")):
        raise ValueError(f"match '{rule.match[:200]}' is neither spiffe://… nor CN=NAME.")
    if rule.match.count("{tenant}") > 1 or rule.match.count("{agent}") > 1:
        raise ValueError("match may have {tenant} and {agent} once each.")
    if rule.tenant is None and "{tenant}" not in rule.match and Role.CALLER in rule.roles:
        raise ValueError("a caller needs a tenant: set tenant, or write {tenant} in match.")


def names_in(certificate: bytes) -> tuple[str, ...]:
    """Return the names of a certificate (PEM or DER) that rules may match.

    URIs come first, then the common name as `CN=NAME`.
    """
    try:
        if certificate.lstrip().startswith(b"-----BEGIN"):
            parsed = x509.load_pem_x509_certificate(certificate)
        else:
            parsed = x509.load_der_x509_certificate(certificate)
        common = [str(each.value) for each in parsed.subject.get_attributes_for_oid(_CN)]
    except ValueError:
        return ()
    try:
        extension = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    names = [*uris, *(f"CN={name}" for name in common)]
    return tuple(name for name in names[:_MOST_NAMES] if name.isprintable())


_CN: Final = NameOID.COMMON_NAME


def principal_of(names: Iterable[str], rules: Iterable[CertificateRule]) -> Principal | None:
    """Return whom the first rule that matches a name makes of its holder, or None."""
    found = tuple(names)
    for rule in rules:
        expression = rule.expression
        for name in found:
            match = expression.fullmatch(name)
            if match is None:
                continue
            places = match.groupdict()
            tenant = rule.tenant if rule.tenant is not None else places.get("tenant")
            agent = rule.agent if rule.agent is not None else places.get("agent")
            try:
                for what, value in (("tenant", tenant), ("agent", agent)):
                    if value is not None:
                        check_name(what, value)
            except ValueError:
                continue
            return Principal(f"certificate {name[:256]}", rule.roles, tenant, agent)
    return None

"""Client certificates: rules that map their names to a tenant, an agent and roles.

TLS has already checked that a trusted authority signed the certificate and that the client has its
private key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from leaseway.identity.principal import Principal, Role, check_name, check_scope, check_user

_PLACEHOLDER: Final = re.compile(r"\{(tenant|agent|user)\}|\*")
_MAX_NAMES: Final = 64


@dataclass(frozen=True)
class CertificateRule:
    """The principal for certificates with a matching name.

    Attributes:
        match: A SPIFFE id or `CN=NAME`. `{tenant}`, `{agent}` and `{user}` capture a name, `*`
            matches any characters; none of them matches a `/`.
        tenant: The tenant; None if `match` captures it, or for no tenant.
        agent: The agent; None if `match` captures it, or for no agent.
        user: The user; None if `match` captures it, or for no user.
    """

    match: str
    roles: frozenset[Role] = frozenset({Role.CALLER})
    tenant: str | None = None
    agent: str | None = None
    user: str | None = None

    @property
    def expression(self) -> re.Pattern[str]:
        """`match` as a regular expression."""
        text, end = "", 0
        for place in _PLACEHOLDER.finditer(self.match):
            text += re.escape(self.match[end : place.start()])
            text += f"(?P<{place[1]}>[^/]+)" if place[1] else "[^/]*"
            end = place.end()
        return re.compile(text + re.escape(self.match[end:]))


def check_rule(rule: CertificateRule) -> None:
    """Raise `ValueError` for an invalid rule, such as one that gives a caller no tenant."""
    if not rule.roles:
        raise ValueError("roles: name at least one.")
    if not rule.match.startswith(("spiffe://", "CN=")):
        raise ValueError(f"match '{rule.match[:200]}' is neither spiffe://… nor CN=NAME.")
    if any(rule.match.count(place) > 1 for place in ("{tenant}", "{agent}", "{user}")):
        raise ValueError("match may have {tenant}, {agent} and {user} once each.")
    if rule.tenant is None and "{tenant}" not in rule.match and Role.CALLER in rule.roles:
        raise ValueError("a caller needs a tenant: set tenant, or write {tenant} in match.")
    tenant = rule.tenant or ("{tenant}" if "{tenant}" in rule.match else None)
    check_scope(rule.roles, tenant)
    check_user(rule.roles, tenant, rule.user or ("{user}" if "{user}" in rule.match else None))


def certificate_names(certificate: bytes) -> tuple[str, ...]:
    """Return the names of a certificate (PEM or DER): URIs first, then `CN=NAME`."""
    try:
        if certificate.lstrip().startswith(b"-----BEGIN"):
            parsed = x509.load_pem_x509_certificate(certificate)
        else:
            parsed = x509.load_der_x509_certificate(certificate)
        common = [str(name.value) for name in parsed.subject.get_attributes_for_oid(_CN)]
    except ValueError:
        return ()
    try:
        extension = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        uris = extension.value.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    names = [*uris, *(f"CN={name}" for name in common)]
    return tuple(name for name in names[:_MAX_NAMES] if name.isprintable())


_CN: Final = NameOID.COMMON_NAME


def principal_for_names(names: Iterable[str], rules: Iterable[CertificateRule]) -> Principal | None:
    """Return the principal of the first rule that matches one of the names, or None."""
    names = tuple(names)
    for rule in rules:
        expression = rule.expression
        for name in names:
            match = expression.fullmatch(name)
            if match is None:
                continue
            captured = match.groupdict()
            tenant = rule.tenant if rule.tenant is not None else captured.get("tenant")
            agent = rule.agent if rule.agent is not None else captured.get("agent")
            user = rule.user if rule.user is not None else captured.get("user")
            try:
                for what, value in (("tenant", tenant), ("agent", agent), ("user", user)):
                    if value is not None:
                        check_name(what, value)
            except ValueError:
                continue
            return Principal(f"certificate {name[:256]}", rule.roles, tenant, agent, user=user)
    return None

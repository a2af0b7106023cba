"""Reader of `security`: the credentials in requests of an `http_api` server.

A credential states its type, or has the name of a security scheme of the server's OpenAPI
document. Its value is a reference that workers resolve; it is never a part of an address in a
log, a span or an error.

See design.md#configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leaseway.control_plane.config.openapi.security import Scheme
from leaseway.control_plane.config.schema import credentials
from leaseway.control_plane.config.schema.fields import (
    HEADER_NAME,
    MAX_HEADER,
    reference,
    value_schema,
    warn_of_credential,
)
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import entries_of, record_of
from leaseway.control_plane.config.schema.values import (
    BadValue,
    reader,
    suggestion,
    worker_text,
)
from leaseway.control_plane.config.tree.yaml_tree import Table, Tree
from leaseway.spec.keys import keys_of
from leaseway.spec.kinds.http_api import Credential, CredentialKind
from leaseway.spec.references import Value

MAX_CREDENTIALS: Final = 20
"""Credentials of one server."""

Given = Mapping[str, Credential | Value]
"""Credentials as written, or values for schemes of the document, by name."""


def _credential_of(kind: CredentialKind, value: Value, name: str = "") -> Credential:
    return Credential(kind, name, value)


def _name_fault(credential: Credential) -> str | None:
    kind, name = credential.kind, credential.name
    match kind:
        case "bearer":
            return "has a 'name', but a bearer token has none; remove it." if name else None
        case "basic":
            return (
                "has a ':' in the user's name, which would end the name." if ":" in name else None
            )
        case "query":
            return None if name else "needs 'name': the name of the query parameter."
        case _:
            if HEADER_NAME.fullmatch(name):
                return None
            return f"needs 'name': the name of the {kind}, of letters, digits and '-'."


_TEXT: Final = worker_text(longest=MAX_HEADER, empty=False)


@reader(value_schema(MAX_HEADER))
def _value(node: Tree, where: Where) -> Value:
    if isinstance(node, Table):
        return reference.read(node, where)
    text = _TEXT.read(node, where)
    if not text.isprintable():
        raise BadValue(f"{quoted(where.key)} contains a character that no header may contain.")
    warn_of_credential(node, where, credentials.credential_kind("token", text))
    return Value("literal", text)


_FULL: Final = record_of(keys_of(Credential), _credential_of, "a credential", {"value": _value})


@reader({"anyOf": [_value.schema, _FULL.schema]})
def _credential(node: Tree, where: Where) -> Credential | Value:
    if not isinstance(node, Table) or not any(
        entry.name in ("type", "value") for entry in node.entries
    ):
        return _value.read(node, where)
    credential = _FULL.read(node, where)
    fault = _name_fault(credential)
    if fault:
        raise BadValue(f"{quoted(where.key)} {fault}")
    return credential


@reader(
    {
        "type": "object",
        "maxProperties": MAX_CREDENTIALS,
        "additionalProperties": _credential.schema,
    }
)
def security(node: Tree, where: Where) -> Given:
    """Read a server's credentials."""
    given: dict[str, Credential | Value] = {}
    for entry in entries_of(node, where, MAX_CREDENTIALS):
        credential = _credential(entry.value, where.child(entry))
        if credential is not None:
            given[entry.name] = credential
    return given


def resolve_credentials(
    given: Given, schemes: Mapping[str, Scheme] | None, where: Where
) -> dict[str, Credential]:
    """Return the credentials, with the kinds of a document's schemes (None without a document).

    Credentials that do not fit are reported.
    """
    resolved: dict[str, Credential] = {}
    for name, value in given.items():
        place, at = where.find(f"security.{name}", where.log.places[where.key])
        try:
            credential = (
                value if isinstance(value, Credential) else _by_scheme(name, value, schemes)
            )
        except BadValue as error:
            place.error(at, error.reason, str(error))
            continue
        other = next(
            (key for key, known in resolved.items() if _target(known) == _target(credential)), None
        )
        if other is not None:
            message = (
                f"{quoted(other)} and {quoted(name)} both set {_named(credential)}; keep the one"
                " that your server expects."
            )
            place.error(at, IssueReason.BAD_VALUE, message)
        resolved[name] = credential
    return resolved


def _by_scheme(name: str, value: Value, schemes: Mapping[str, Scheme] | None) -> Credential:
    """Return the credential of a document's security scheme.

    Raises:
        BadValue: There is no such scheme, or it is not supported.
    """
    if schemes is None:
        raise BadValue(
            f"{quoted(name)} needs 'type' and 'value', as in {{type: bearer, value: {{secret: "
            "NAME}}: without 'openapi' it has no other source of its type."
        )
    scheme = schemes.get(name)
    if scheme is None:
        hint = suggestion(name, tuple(schemes)) if schemes else "it has none; write a 'type'."
        raise BadValue(f"{quoted(name)} is not a security scheme of the document: {hint}")
    if scheme.kind is None:
        raise BadValue(
            f"The security scheme {quoted(name)} is {scheme.description}, which no header, query or"
            " cookie carries."
        )
    return Credential(scheme.kind, scheme.name, value)


def _target(credential: Credential) -> tuple[str, str]:
    if credential.kind in ("query", "cookie"):
        return credential.kind, credential.name
    return "header", credential.header.lower()


def _named(credential: Credential) -> str:
    kind, name = _target(credential)
    return f"the {kind} {quoted((credential.header if kind == 'header' else '') or name)}"

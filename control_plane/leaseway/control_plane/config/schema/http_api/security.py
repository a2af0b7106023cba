"""Reader of `security`: what requests of an `http_api` server carry to say who asks (DESIGN §2).

A credential either says itself what it is, or has the name of a security scheme of the server's
OpenAPI document. Its value is a reference that workers resolve; it is never a part of an address
in a log, a span or an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from leaseway.control_plane.config.schema.issues import IssueReason, Where, shown
from leaseway.control_plane.config.schema.tables import (
    Key,
    keyed,
    mapping,
    read_table,
    schema_of,
    unique_entries,
)
from leaseway.control_plane.config.schema.values import (
    Reader,
    check_references,
    choice,
    plain_text,
    suggestion,
    takes,
    text_of,
)
from leaseway.control_plane.config.tree.yaml_tree import Table, Tree
from leaseway.spec.model import CREDENTIAL_KINDS, Credential, Value

MAX_CREDENTIALS: Final = 20
"""Of one server."""

Given = Mapping[str, "Credential | Value"]
"""What a file says: a credential, or the value for a scheme that a document describes."""


def _security(node: Tree, where: Where) -> Given | None:
    """Read a server's credentials."""
    table = mapping(node, where)
    if table is None:
        return None
    entries = unique_entries(table, where)
    if len(entries) > MAX_CREDENTIALS:
        message = f"{shown(where.key)} has {len(entries)} entries; {MAX_CREDENTIALS} are allowed."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    read = {
        entry.name: _credential(entry.value, where.child(entry.name, entry.value.at))
        for entry in entries
    }
    return {name: one for name, one in read.items() if one is not None}


def wired(
    given: Given, schemes: Mapping[str, Scheme] | None, where: Where
) -> dict[str, Credential]:
    """Return the credentials with those whose kind a document says; report what does not fit.

    Args:
        given: As the file says.
        schemes: Those of the server's document, or None where it has none.
        where: The place of the server.
    """
    wired: dict[str, Credential] = {}
    for name, one in given.items():
        place = replace(where, key=f"{where.key}.security.{name}")
        at = where.log.places.get(place.key, where.log.places.get(f"{where.key}.security"))
        at = at or where.log.places[where.key]
        credential = one if isinstance(one, Credential) else _by_scheme(name, one, schemes)
        if isinstance(credential, str):
            place.error(at, IssueReason.BAD_VALUE, credential)
            continue
        other = next(
            (key for key, each in wired.items() if _target(each) == _target(credential)), None
        )
        if other is not None:
            message = (
                f"{shown(other)} and {shown(name)} both set {_named(credential)}; keep the one "
                "that your server wants."
            )
            place.error(at, IssueReason.BAD_VALUE, message)
        wired[name] = credential
    return wired


def _by_scheme(name: str, value: Value, schemes: Mapping[str, Scheme] | None) -> Credential | str:
    """Return the credential of a document's scheme, or a sentence that says why there is none."""
    if schemes is None:
        return (
            f"{shown(name)} needs 'type' and 'value', as in {{type: bearer, value: {{secret: "
            "NAME}}: without 'openapi' nothing else says what it is."
        )
    scheme = schemes.get(name)
    if scheme is None:
        hint = suggestion(name, tuple(schemes)) if schemes else "it has none; give it a 'type'."
        return f"{shown(name)} is no security scheme of the document: {hint}"
    if scheme.kind is None:
        return (
            f"The security scheme {shown(name)} is {scheme.said}, which no header, query or cookie "
            "carries."
        )
    return Credential(scheme.kind, scheme.name, value)


def _credential(node: Tree, where: Where) -> Credential | Value | None:
    if not isinstance(node, Table) or not any(
        entry.name in ("type", "value") for entry in node.entries
    ):
        return _value(node, where)
    entries = unique_entries(node, where)
    values = read_table(entries, _KEYS, where, "a credential")
    given = {entry.name for entry in entries}
    for name in ("type", "value"):
        if name not in given:
            where.missing(node.at, name, f"The credential needs {name!r}.")
    if not {"kind", "value"} <= values.keys():
        return None
    credential = Credential(values["kind"], values.get("name", ""), values["value"])
    fault = _name_fault(credential)
    if fault:
        where.error(node.at, IssueReason.BAD_VALUE, f"{shown(where.key)} {fault}")
        return None
    return credential


def _name_fault(credential: Credential) -> str | None:
    kind, name = credential.kind, credential.name
    match kind:
        case "bearer":
            return "has a 'name', which a bearer token has not; remove it." if name else None
        case "basic":
            return "has a ':' in the user's name, which ends it." if ":" in name else None
        case "query":
            return None if name else "needs 'name': that of the pair of the query."
        case _:
            if HEADER_NAME.fullmatch(name):
                return None
            return f"needs 'name': that of the {kind}, of letters, digits and '-'."


@takes(value_schema(MAX_HEADER))
def _value(node: Tree, where: Where) -> Value | None:
    if isinstance(node, Table):
        return reference(node, where)
    text = text_of(node, where, longest=MAX_HEADER, empty=False)
    if text is None:
        return None
    if not text.isprintable():
        message = f"{shown(where.key)} holds a character that no header may hold."
        where.error(node.at, IssueReason.BAD_VALUE, message)
        return None
    check_references(node, where)
    warn_of_credential(node, where, credentials.credential_kind("token", text))
    return Value("literal", text)


def _target(credential: Credential) -> tuple[str, str]:
    if credential.kind in ("query", "cookie"):
        return credential.kind, credential.name
    return "header", credential.header.lower()


def _named(credential: Credential) -> str:
    kind, name = _target(credential)
    return (
        f"the {kind} {shown(credential.header or name)}"
        if kind == "header"
        else f"the {kind} {shown(name)}"
    )


_KEYS: Final = keyed(
    Key("type", choice(*CREDENTIAL_KINDS), "kind"),
    Key("name", plain_text(longest=256, empty=False), "name"),
    Key("value", _value, "value"),
)

security: Final = Reader(
    _security,
    {
        "type": "object",
        "maxProperties": MAX_CREDENTIALS,
        "additionalProperties": {
            "anyOf": [_value.schema, schema_of(_KEYS, required=("type", "value"))]
        },
    },
)
"""Reads a server's credentials."""

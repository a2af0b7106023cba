"""Reader of `security`: the credentials in requests of an `http_api` server.

A credential states its type, or has the name of a security scheme of the server's OpenAPI
document. Its value is a reference that workers resolve; it is never a part of an address in a
log, a span or an error.

See design.md#configuration.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from leaseway.control_plane.config.openapi.security import Scheme
from leaseway.control_plane.config.schema import credentials
from leaseway.control_plane.config.schema.fields import HEADER_NAME, MAX_HEADER, worker_value
from leaseway.control_plane.config.schema.issues import IssueReason, Where, quoted
from leaseway.control_plane.config.schema.tables import by_name, record_of
from leaseway.control_plane.config.schema.values import BadValue, reader, suggestion
from leaseway.control_plane.config.tree.yaml_tree import Table, Tree
from leaseway.spec.keys import keys_of
from leaseway.spec.kinds.http_api import AUTHORIZATION, Credential, CredentialKind
from leaseway.spec.kinds.http_tools import MAX_CREDENTIALS, OF_AUTH, HttpTool
from leaseway.spec.references import Value

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


def _value_fault(text: str) -> str | None:
    return None if text.isprintable() else "contains a character that no header may contain."


_VALUE: Final = worker_value(
    MAX_HEADER, _value_fault, kind_of=partial(credentials.credential_kind, "token")
)
_FULL: Final = record_of(keys_of(Credential), _credential_of, "a credential", {"value": _VALUE})


@reader({"anyOf": [_VALUE.schema, _FULL.schema]})
def _credential(node: Tree, where: Where) -> Credential | Value:
    if not isinstance(node, Table) or not any(
        entry.name in ("type", "value") for entry in node.entries
    ):
        return _VALUE.read(node, where)
    credential = _FULL.read(node, where)
    fault = _name_fault(credential)
    if fault:
        raise BadValue(f"{quoted(where.key)} {fault}")
    return credential


security: Final = by_name(_credential, MAX_CREDENTIALS)
"""Reads a server's credentials."""


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
        resolved[name] = credential
    return resolved


class ToolCredentials:
    """Which of a server's credentials each of its tools gets.

    Args:
        credentials: The server's, by name.
        has_token: Whether it has `auth`.
        schemes: The security schemes of its document; empty without one.
    """

    def __init__(
        self,
        credentials: Mapping[str, Credential],
        *,
        has_token: bool,
        schemes: Mapping[str, Scheme],
    ) -> None:
        targets = {name: credential.target for name, credential in credentials.items()}
        self._credentials = credentials
        self._is_ambiguous = has_token and OF_AUTH in credentials
        self._all = {**targets, OF_AUTH: AUTHORIZATION} if has_token else targets
        self._stands_for = {
            name: frozenset(
                [name]
                if name in schemes and name != OF_AUTH
                else (key for key, scheme in schemes.items() if scheme.target == target)
            )
            for name, target in self._all.items()
        }

    def of_document(self, tool: HttpTool) -> HttpTool:
        """Return a tool of the document, whose `security` has schemes, with its credentials.

        It gets those that stand for a scheme that it asks for, that set a parameter of it, or that
        stand for no scheme; of those that set the same, that of the scheme it names first. One
        that does not say what it asks for, as FastAPI writes public ones, gets all but those.
        """
        asked = tool.security
        if asked is None:
            sets = Counter(self._all.values())
            return self._with(tool, [name for name in self._all if sets[self._all[name]] == 1])
        set_by_callers = {parameter.target for parameter in tool.parameters}
        found = [name for scheme in asked for name in self._names_for(scheme)]
        found += [name for name, target in self._all.items() if target in set_by_callers]
        if asked:
            found += [name for name in self._all if not self._stands_for[name]]
        return self._with(tool, {self._all[name]: name for name in reversed(found)}.values())

    def _with(self, tool: HttpTool, names: Collection[str]) -> HttpTool:
        chosen = tuple(name for name in self._all if name in names)
        return replace(tool, security=None if chosen == tuple(self._all) else chosen)

    def meets(self, asked: Iterable[str]) -> bool:
        """Return whether one of the schemes may be met: a credential stands for it, or for none."""
        return any(not schemes or schemes & set(asked) for schemes in self._stands_for.values())

    def _names_for(self, scheme: str) -> Iterable[str]:
        return (name for name, schemes in self._stands_for.items() if scheme in schemes)

    def check(self, tools: Iterable[HttpTool], where: Where) -> None:
        """Report each two credentials of which no tool can have both, if one would."""
        reported: set[str] = set()
        for tool in tools:
            by_target: dict[str, str] = {}
            for name, credential in self._credentials.items():
                if tool.security is not None and name not in tool.security:
                    continue
                other = by_target.setdefault(credential.target, name)
                if other == name or name in reported:
                    continue
                reported.add(name)
                message = (
                    f"{quoted(other)} and {quoted(name)} both set {_named(credential)} of the tool"
                    f" {quoted(tool.name)}; keep the one that your server expects."
                )
                place, at = where.find(f"security.{name}", where.log.places[where.key])
                place.error(at, IssueReason.BAD_VALUE, message)

    def check_names(self, tools: Iterable[HttpTool], where: Where) -> None:
        """Report names in the `security` of tools that stand for no credential, or for two."""
        if self._is_ambiguous:
            message = (
                f"{quoted(OF_AUTH)} under 'security' has the name that tools have for the token of"
                " the server's 'auth': give it another name, with its 'type'."
            )
            place, at = where.find(f"security.{OF_AUTH}", where.log.places[where.key])
            place.error(at, IssueReason.BAD_VALUE, message)
        for tool in tools:
            unknown = [name for name in tool.security or () if name not in self._all]
            if unknown:
                known = tuple(self._all)
                hint = suggestion(unknown[0], known) if known else "it sets none."
                message = (
                    f"The tool {quoted(tool.name)} names {quoted(unknown[0])} under 'security', but"
                    f" the 'security' of its server does not: {hint}"
                )
                place, at = where.find("http_tools", where.log.places[where.key])
                place.error(at, IssueReason.BAD_HTTP_TOOL, message)


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


def _named(credential: Credential) -> str:
    kind = credential.kind if credential.kind in ("query", "cookie") else "header"
    return f"the {kind} {quoted(credential.name if kind != 'header' else credential.header)}"

"""Security schemes of an OpenAPI document, with the place of each credential in a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from leaseway.control_plane.config.openapi.references import References, Unsupported
from leaseway.spec.kinds.http_api import AUTHORIZATION, CredentialKind, target_of

_PLACES: Final[Mapping[str, CredentialKind]] = {
    "header": "header",
    "query": "query",
    "cookie": "cookie",
}
_MAX_NAME: Final = 256
_HEADER: Final = "Authorization"


@dataclass(frozen=True)
class Scheme:
    """One security scheme, with the name of its header, query parameter or cookie.

    `kind` is None if the credential is sent in another way; `description` is a noun for messages.
    """

    kind: CredentialKind | None
    name: str = ""
    description: str = ""

    @property
    def target(self) -> str:
        """The header, query parameter or cookie that it sets; equal if two schemes conflict."""
        return AUTHORIZATION if self.kind is None else target_of(self.kind, self.name)

    @property
    def example(self) -> str:
        """Its part of a request, for messages."""
        match self.kind:
            case "bearer":
                return "the header 'Authorization: Bearer …'"
            case "basic":
                return "the header 'Authorization: Basic …'"
            case None:
                return f"{self.description}, which is not supported"
            case _:
                noun = "query parameter" if self.kind == "query" else self.kind
                return f"the {noun} {self.name[:64]!r}"


def schemes(document: Mapping[str, Any], references: References) -> Mapping[str, Scheme]:
    """Return a document's schemes by name."""
    components = document.get("components")
    given = components.get("securitySchemes") if isinstance(components, Mapping) else None
    found: dict[str, Scheme] = {}
    for name, node in given.items() if isinstance(given, Mapping) else ():
        try:
            scheme = references.follow(node)
        except Unsupported:
            continue
        if isinstance(scheme, Mapping):
            found[str(name)[:_MAX_NAME]] = _scheme(scheme)
    return found


def asked_for(given: object, known: Mapping[str, Scheme]) -> tuple[str, ...] | None:
    """Return the names of the schemes that an operation asks for, in order; None if unknown.

    Those of all its alternatives: FastAPI and NestJS write schemes that are needed together as
    alternatives, too.

    Args:
        given: Its `security`, or that of its document; None without one.
        known: The document's schemes.
    """
    if not isinstance(given, list) or not all(isinstance(choice, Mapping) for choice in given):
        return None
    names = tuple(dict.fromkeys(str(name)[:_MAX_NAME] for choice in given for name in choice))
    return names if all(name in known for name in names) else None


def is_authorization(parameter: Mapping[str, Any]) -> bool:
    """Return whether a parameter is the header `Authorization`, which is no tool's."""
    return parameter.get("in") == "header" and str(parameter["name"]).lower() == "authorization"


def with_authorization(known: Mapping[str, Scheme]) -> Mapping[str, Scheme]:
    """Return the schemes of a document whose operations have the header `Authorization`.

    Some documents say of their credential only that.
    """
    own = Scheme("header", _HEADER, "the header 'Authorization'")
    return known if of_authorization(known) else {**known, _HEADER: own}


def of_authorization(known: Mapping[str, Scheme]) -> tuple[str, ...]:
    """Return the names of the schemes whose credential is the header `Authorization`."""
    return tuple(
        name for name, scheme in known.items() if scheme.target == AUTHORIZATION or name == _HEADER
    )


def _scheme(scheme: Mapping[str, Any]) -> Scheme:
    kind = str(scheme.get("type"))[:32]
    if kind == "apiKey":
        place = str(scheme.get("in"))[:32]
        name = str(scheme.get("name", ""))[:256]
        if place == "header" and name.lower() == "authorization":
            return Scheme("header", "Authorization", kind)
        return Scheme(_PLACES.get(place) if name else None, name, f"an API key in {place!r}")
    if kind == "http":
        method = str(scheme.get("scheme", "")).lower()[:32]
        if method in ("bearer", "basic"):
            return Scheme("bearer" if method == "bearer" else "basic", "", kind)
        return Scheme(None, "", f"the HTTP authentication {method!r}")
    if kind in ("oauth2", "openIdConnect"):
        return Scheme("bearer", "", kind)
    return Scheme(None, "", kind)

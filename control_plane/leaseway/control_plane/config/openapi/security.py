"""Security schemes of an OpenAPI document, with the place of each credential in a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from leaseway.control_plane.config.openapi.references import References, Unsupported
from leaseway.spec.kinds.http_api import CredentialKind

_PLACES: Final[Mapping[str, CredentialKind]] = {
    "header": "header",
    "query": "query",
    "cookie": "cookie",
}


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
        match self.kind:
            case "header":
                return f"header {self.name.lower()}"
            case "query" | "cookie":
                return f"{self.kind} {self.name}"
            case _:
                return "header authorization"

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
            found[str(name)[:256]] = _scheme(scheme)
    return found


def is_authorization(parameter: Mapping[str, Any]) -> bool:
    """Return whether a parameter is the header `Authorization`, which is no tool's."""
    return parameter.get("in") == "header" and str(parameter["name"]).lower() == "authorization"


def with_authorization(known: Mapping[str, Scheme]) -> Mapping[str, Scheme]:
    """Return the schemes of a document whose operations have the header `Authorization`.

    Some documents say of their credential only that.
    """
    own = Scheme("header", "Authorization", "the header 'Authorization'")
    if "Authorization" in known or any(scheme.target == own.target for scheme in known.values()):
        return known
    return {**known, "Authorization": own}


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

"""Servers whose tools are HTTP requests, without an MCP server (`transport: http_api`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, assert_never, get_args

from leaseway.spec.keys import (
    Choice,
    Flag,
    Key,
    ListOf,
    OwnReader,
    Text,
    Whole,
    declared,
    keys_of,
    setting,
)
from leaseway.spec.kinds.http_tools import MAX_RETRIES, HttpTool
from leaseway.spec.kinds.shared import HTTP_SCHEMES, RequestPart
from leaseway.spec.references import Value

CredentialKind = Literal["bearer", "basic", "header", "query", "cookie"]
CREDENTIAL_KINDS: Final[tuple[CredentialKind, ...]] = get_args(CredentialKind)
AUTHORIZATION: Final = "header authorization"
"""The target of what is in the header `Authorization`."""


def target_of(kind: CredentialKind, name: str) -> str:
    """Return what a credential sets in a request: equal if two cannot be sent together."""
    match kind:
        case "header":
            return f"header {name.lower()}"
        case "query" | "cookie":
            return f"{kind} {name}"
        case "bearer" | "basic":
            return AUTHORIZATION
    assert_never(kind)


@dataclass(frozen=True)
class Credential:
    """A credential sent with every request; its keys say what each field means.

    Attributes:
        name: Empty for `basic` if the value contains the user.
    """

    kind: CredentialKind = field(
        metadata=declared(
            Key(Choice(CREDENTIAL_KINDS), "Where requests have it.", "type", required=True)
        )
    )
    name: str = field(
        metadata=declared(
            Key(
                Text(256, empty=False),
                "The name of the header, query parameter or cookie; of `basic` the user.",
            )
        )
    )
    value: Value = field(
        metadata=declared(
            Key(
                OwnReader(),
                "The token, password or key: a literal or a [reference](#secrets).",
                required=True,
                replaces="names",
                secret=True,
            )
        )
    )

    @property
    def target(self) -> str:
        """What it sets in a request."""
        return target_of(self.kind, self.name)

    @property
    def header(self) -> str:
        """The name of its header, or an empty text."""
        headers = {"header": self.name, "query": "", "cookie": "Cookie"}
        return headers.get(self.kind, "Authorization")


_PATTERNS: Final = ListOf(Text(1_024, empty=False), 1_000)
SELECTION_KEYS: Final = (
    Key(_PATTERNS, "Patterns of operation ids.", "operations"),
    Key(_PATTERNS, "Patterns of tags.", "tags"),
    Key(_PATTERNS, "Patterns of paths.", "paths"),
)
"""The keys inside a choice of operations."""

OPENAPI_KEYS: Final = (
    Key(
        Text(4_096, empty=False),
        "The document: a file beside the configuration, or an address.",
        "source",
        required=True,
    ),
    Key(
        OwnReader(),
        "The operations that become tools.",
        "include",
        default="all",
        inside=SELECTION_KEYS,
    ),
    Key(OwnReader(), "Operations that become no tools.", "exclude", inside=SELECTION_KEYS),
    Key(
        OwnReader(),
        "Origins of operations' own servers that get `headers` and `security`.",
        "send_credentials_to",
    ),
)
"""The keys inside `openapi`."""


@dataclass(frozen=True)
class HttpApiPart(RequestPart):
    """An API whose requests are tools.

    Attributes:
        http_tools: The tools, of the entry and of its OpenAPI document.
        security: Credentials by the name of their security scheme.
        follow_redirects: Whether a redirect is followed.
        retries: How often an idempotent request is repeated.
    """

    transports: ClassVar[tuple[str, ...]] = ("http_api",)
    readers: ClassVar[str] = "leaseway.control_plane.config.schema.kinds.http_api.servers"
    reads_artifacts: ClassVar[bool] = True
    entry_keys: ClassVar[tuple[Key, ...]] = (
        Key(
            OwnReader(),
            "The file or URL of an OpenAPI document; its operations become tools.",
            name="openapi",
            inside=OPENAPI_KEYS,
            listed=True,
            becomes="http_tools",
        ),
    )

    url: str = setting(
        "",
        Key(
            OwnReader(),
            "The address that its requests start with: [REST APIs](rest-tools.md).",
            name="base_url",
            default="the document's",
            replaces="names",
        ),
    )
    http_tools: tuple[HttpTool, ...] = setting(
        (),
        Key(
            OwnReader(),
            "The tools, each of which is an HTTP request.",
            inside=tuple(keys_of(HttpTool)),
            listed=True,
        ),
    )
    security: Mapping[str, Credential] = setting(
        {},
        Key(
            OwnReader(),
            "Credentials of requests; without `type`, for a security scheme of the document.",
            replaces="names",
            inside=tuple(keys_of(Credential)),
        ),
    )
    follow_redirects: bool = setting(False, Key(Flag(), "Whether redirects are followed."))
    retries: int = setting(
        0, Key(Whole(0, MAX_RETRIES), "How often an idempotent request is repeated.")
    )

    @classmethod
    def schemes(cls, transport: str) -> tuple[str, ...]:
        return HTTP_SCHEMES

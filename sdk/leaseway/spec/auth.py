"""How workers obtain OAuth tokens for a server, as configured; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from leaseway.spec.keys import Choice, Key, OwnReader, Text, Whole, setting
from leaseway.spec.references import Value

AuthGrant = Literal[
    "client_credentials", "authorization_code", "token_exchange", "id_jag", "workload_identity"
]

Subject = Literal["service", "tenant", "user", "caller"]

SUBJECTS: Final[Mapping[AuthGrant, Subject]] = {
    "client_credentials": "service",
    "authorization_code": "tenant",
    "token_exchange": "caller",
    "id_jag": "caller",
    "workload_identity": "service",
}
"""Whose tokens each grant obtains; `for` may say it of a login."""

SUBJECT_TOKEN_TYPES: Final = ("access_token", "id_token", "jwt")
"""Types of a caller's own token (RFC 8693, section 3)."""

ALGORITHMS: Final = ("RS256", "PS256", "ES256", "ES384", "Ed25519", "EdDSA")
"""Signatures of a client's assertion; the last is the older name of the one before it."""

ALWAYS: Final = "always"
NEVER: Final = "never"
"""The values of `dpop`."""

NO_RESOURCE: Final = "none"
"""The value of `resource` for authorization servers that know no resource indicators."""

CLIENT_ID: Final = "client_id"
CLIENT_SECRET: Final = "client_secret"  # noqa: S105 - the name of a key
PRIVATE_KEY: Final = "private_key"
ASSERTION: Final = "assertion"
ACTOR_TOKEN: Final = "actor_token"  # noqa: S105 - the name of a key
LISTING_TOKEN: Final = "listing_token"  # noqa: S105 - the name of a key
PROVIDER_ID: Final = "identity_provider_client_id"
PROVIDER_SECRET: Final = "identity_provider_client_secret"  # noqa: S105 - the name of a key
PROVIDER_KEY: Final = "identity_provider_private_key"


LOGIN: Final = "authorization_code"
EXCHANGE: Final = "token_exchange"
ID_JAG: Final = "id_jag"
WORKLOAD_IDENTITY: Final = "workload_identity"
"""Grants with keys of their own, beside `client_credentials`."""


METADATA_URL: Final = "auth_server_metadata_url"
ENDPOINTS: Final = (
    "token_endpoint",
    "authorization_endpoint",
    "device_authorization_endpoint",
    "registration_endpoint",
    "revocation_endpoint",
)
"""Keys with the endpoints of an authorization server; its metadata name them the same."""
ADDRESSES: Final = (METADATA_URL, *ENDPOINTS)


def _resolved(name: str, about: str, **more: Any) -> Key:
    """Return a key of `Auth.values`."""
    return Key(OwnReader(), about, name, path=name, replaces="names", **more)


@dataclass(frozen=True)
class Auth:
    """How a worker obtains the OAuth tokens that it sends to a server.

    Its keys say what each field means; an empty field was not given.

    Attributes:
        grant: How tokens are obtained; empty for no OAuth at all.
        subject: Whose tokens these are: the service's own, each tenant's, each user's, or those
            that callers bring tokens of their own for.
        values: What workers resolve, by the name of its key.

    See design.md#tokens-for-remote-servers.
    """

    grant: AuthGrant | Literal[""] = ""
    subject: Subject = setting(
        "service",
        Key(
            Choice(("tenant", "user")),
            "Whose login a call uses.",
            "for",
            required=True,
            only=(LOGIN,),
        ),
    )
    values: Mapping[str, Value] = setting(
        {},
        _resolved(
            CLIENT_ID, "The client's id.", required_by=("client_credentials", EXCHANGE, ID_JAG)
        ),
        _resolved(CLIENT_SECRET, "The client's secret.", secret=True),
        _resolved(
            PRIVATE_KEY,
            "Instead of a secret, a key that signs assertions: PEM or JWK.",
            secret=True,
        ),
        _resolved(
            ASSERTION,
            "The platform's statement of who the workload is: a JWT, read for each request.",
            required_by=(WORKLOAD_IDENTITY,),
            only=(WORKLOAD_IDENTITY,),
        ),
        _resolved(
            LISTING_TOKEN,
            "The token for listing tools, when nobody calls; by default the client's own.",
            secret=True,
            only=(EXCHANGE, ID_JAG),
        ),
        _resolved(
            ACTOR_TOKEN,
            "The token of whoever acts for the caller (the actor of the new token).",
            secret=True,
            only=(EXCHANGE,),
        ),
        _resolved(
            PROVIDER_ID,
            "The client at the identity provider.",
            required_by=(ID_JAG,),
            only=(ID_JAG,),
        ),
        _resolved(PROVIDER_SECRET, "That client's secret.", secret=True, only=(ID_JAG,)),
        _resolved(
            PROVIDER_KEY,
            "Instead of it, a key that signs assertions.",
            secret=True,
            only=(ID_JAG,),
        ),
    )
    scopes: tuple[str, ...] = setting(
        (), Key(OwnReader(), "The requested scopes; by default those that the server names.")
    )
    issuer: str = setting(
        "", Key(OwnReader(), "The authorization server; by default the server names it.")
    )
    auth_server_metadata_url: str = setting(
        "",
        Key(
            OwnReader(),
            "The address of the authorization server's metadata, if they are not where those of an"
            " issuer are.",
        ),
    )
    token_endpoint: str = setting(
        "",
        Key(OwnReader(), "Its token endpoint, if it has no metadata: the endpoints replace them."),
    )
    authorization_endpoint: str = setting(
        "", Key(OwnReader(), "Where people log in in a browser.", only=(LOGIN,))
    )
    device_authorization_endpoint: str = setting(
        "", Key(OwnReader(), "Where logins on another device begin.", only=(LOGIN,))
    )
    registration_endpoint: str = setting(
        "", Key(OwnReader(), "Where a client is registered.", only=(LOGIN,))
    )
    revocation_endpoint: str = setting(
        "", Key(OwnReader(), "Where a logout revokes tokens.", only=(LOGIN,))
    )
    resource: str = setting(
        "", Key(OwnReader(), "The resource indicator; by default the server's; none sends none.")
    )
    dpop: str = setting(
        "",
        Key(
            Choice((ALWAYS, NEVER)),
            "Whether tokens are bound to a key (DPoP); by default if the server asks for it.",
        ),
    )
    algorithm: str = setting(
        "",
        Key(
            Choice(ALGORITHMS),
            "The signature of assertions; by default one of the key's that is accepted.",
        ),
    )
    key_id: str = setting("", Key(Text(256, empty=False), "The `kid` of assertions."))
    client_metadata_url: str = setting(
        "",
        Key(
            OwnReader(),
            "The https address of the client's metadata document, which is its id.",
            only=(LOGIN,),
        ),
    )
    redirect_port: int = setting(
        0, Key(Whole(1, 65_535), "The loopback port of a login's redirect.", only=(LOGIN,))
    )
    redirect_uri: str = setting(
        "",
        Key(
            OwnReader(),
            "The loopback address of a login's redirect, as it is registered; without a port, any.",
            only=(LOGIN,),
        ),
    )
    parameters: Mapping[str, str] = setting(
        {},
        Key(
            OwnReader(),
            "More parameters that the authorization server wants: of the page of a login, else of"
            " each token request.",
        ),
    )
    subject_token_type: str = setting(
        "",
        Key(
            Choice(SUBJECT_TOKEN_TYPES),
            "The type of the tokens that callers bring.",
            only=(EXCHANGE, ID_JAG),
        ),
    )
    audience: str = setting(
        "",
        Key(
            Text(8_192, empty=False),
            "The logical name of the server at the authorization server.",
            only=(EXCHANGE,),
        ),
    )
    identity_provider: str = setting(
        "",
        Key(
            OwnReader(),
            "The issuer of the tokens that callers bring.",
            required=True,
            only=(ID_JAG,),
        ),
    )

    def __bool__(self) -> bool:
        return bool(self.grant)

    @property
    def configured_at(self) -> str:
        """Where the operator says that the authorization server is, beside its issuer.

        That is the address of its metadata, or of its token endpoint; empty if it is not said.
        """
        return self.auth_server_metadata_url or self.token_endpoint

    @property
    def names_server(self) -> bool:
        """Whether the operator says which authorization server issues the tokens."""
        return bool(self.issuer or self.configured_at)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the authorization server that the operator wrote."""
        written = (self.issuer, *(getattr(self, name) for name in ADDRESSES))
        return tuple(address for address in written if address)

    @property
    def is_of_people(self) -> bool:
        """Whether each tenant, user or caller sees what is theirs."""
        return self.subject != "service"

    @property
    def acts_for_users(self) -> bool:
        """Whether each user of a tenant, or each caller, sees what is theirs."""
        return self.subject in ("user", "caller")

    @property
    def logs_in(self) -> bool:
        """Whether tenants or users log in once, and calls use that."""
        return self.subject in ("tenant", "user")


NO_AUTH: Final = Auth()

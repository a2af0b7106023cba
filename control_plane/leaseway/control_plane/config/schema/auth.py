"""Reader of `auth`: how a worker obtains the OAuth tokens for a server.

See design.md#tokens-for-remote-servers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from leaseway.control_plane.config.schema import credentials
from leaseway.control_plane.config.schema.fields import (
    MAX_HEADER,
    MAX_URL,
    warn_of_named,
    worker_value,
)
from leaseway.control_plane.config.schema.issues import (
    ConfigIssue,
    IssueLog,
    IssueReason,
    Where,
    quoted,
)
from leaseway.control_plane.config.schema.tables import by_name, entries_of, record_of
from leaseway.control_plane.config.schema.values import (
    MAX_TEXT,
    BadValue,
    Reader,
    checked,
    list_of,
    plain_text,
    reader,
    reader_of,
    suggestion,
)
from leaseway.control_plane.config.tree.yaml_tree import TableEntry, Tree
from leaseway.spec.auth import (
    ACTOR_TOKEN,
    ADDRESSES,
    ASSERTION,
    CLIENT_ID,
    CLIENT_SECRET,
    ENDPOINTS,
    ID_JAG,
    LISTING_TOKEN,
    LOGIN,
    METADATA_URL,
    NO_RESOURCE,
    PRIVATE_KEY,
    PROVIDER_ID,
    PROVIDER_KEY,
    PROVIDER_SECRET,
    SUBJECTS,
    Auth,
    AuthGrant,
    Subject,
)
from leaseway.spec.keys import keys_of
from leaseway.spec.references import Value
from leaseway.wire.channels.endpoint import is_loopback_host

MAX_SCOPES: Final = 100
_MAX_SCOPE: Final = 256
_MAX_PARAMETERS: Final = 32
_MAX_PARAMETER: Final = 2_048
_PARAMETER: Final = re.compile(r"[A-Za-z0-9._~-]{1,64}", re.ASCII)
_OWN_PARAMETERS: Final[Mapping[str, str]] = {
    "scope": "scopes",
    "resource": "resource",
    "client_id": CLIENT_ID,
    "client_secret": CLIENT_SECRET,
    "redirect_uri": "redirect_uri",
    **dict.fromkeys(
        (
            "response_type", "response_mode", "state", "code_challenge", "code_challenge_method",
            "dpop_jkt", "request", "request_uri", "grant_type", "code", "code_verifier",
            "device_code", "refresh_token", "assertion", "client_assertion",
            "client_assertion_type", "subject_token", "subject_token_type", "actor_token",
            "actor_token_type", "requested_token_type",
        ),
        "",
    ),
}  # fmt: skip
"""Parameters that a worker sets itself, with the key that says their value, if there is one."""
_VALUES: Final = "values."


def _address_fault(address: str) -> str | None:
    fault = _endpoint_fault(address)
    if fault is None and urlsplit(address).query:
        return "may contain neither credentials, nor a query, nor a fragment."
    return fault


def _endpoint_fault(address: str) -> str | None:
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is not a valid URL."
    if parts.scheme not in ("http", "https") or not host:
        return "must be an http or https URL, such as https://login.example.com."
    if any(not "!" <= character <= "~" for character in address):
        return "contains a space, or another character that no URL has."
    if "@" in parts.netloc or parts.fragment:
        return "may contain neither credentials nor a fragment."
    return None


def _resource_fault(resource: str) -> str | None:
    return None if resource == NO_RESOURCE else _address_fault(resource)


def _metadata_fault(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.path.strip("/"):
        return None
    return "must be an https URL with a path, such as https://example.com/oauth/client.json."


def _scope_fault(scope: str) -> str | None:
    if any(not "!" <= character <= "~" or character in '"\\' for character in scope):
        return "contains a character that no scope has; write each scope as an item of its own."
    return None


def _redirect_fault(address: str) -> str | None:
    fault = _address_fault(address)
    if fault is not None:
        return fault
    parts = urlsplit(address)
    if parts.scheme != "http" or not is_loopback_host(parts.hostname or ""):
        return (
            "must lead to this machine, such as http://localhost:3118/callback; the redirect of"
            " logins at a link is the console's."
        )
    return None


def _credential(longest: int, kind: str) -> Reader[Value]:
    def kind_of(text: str) -> str | None:
        return None if text.startswith("${") else kind

    return worker_value(longest, kind_of=kind_of)


_ADDRESS: Final = checked(plain_text(longest=MAX_URL, empty=False), _address_fault)
_ENDPOINT: Final = checked(plain_text(longest=MAX_URL, empty=False), _endpoint_fault)
_RESOURCE: Final = checked(plain_text(longest=MAX_URL, empty=False), _resource_fault)
_SCOPE: Final = checked(plain_text(longest=_MAX_SCOPE, empty=False), _scope_fault)


def _parameter_fault(name: str) -> str | None:
    if not _PARAMETER.fullmatch(name):
        return "is no parameter: write 1 to 64 letters, digits, '.', '_', '~' and '-'"
    if name not in _OWN_PARAMETERS:
        return None
    key = _OWN_PARAMETERS[name]
    return f"is set by workers: write {quoted(key)} instead" if key else "is set by workers"


_PARAMETERS: Final = by_name(
    plain_text(longest=_MAX_PARAMETER),
    _MAX_PARAMETERS,
    _parameter_fault,
    what="parameters",
    accepted=warn_of_named,
)
"""Reads what else an authorization server wants; an empty text removes a parameter."""


_CLIENT: Final = worker_value(MAX_HEADER, kind_of=partial(credentials.credential_kind, ""))
_SECRET: Final = _credential(MAX_HEADER, "a client secret")
_PRIVATE_KEY: Final = _credential(MAX_TEXT, "a private key")
_TOKEN: Final = _credential(MAX_TEXT, "a token")
_KEY_READERS: Final[Mapping[str, Reader[Any]]] = {
    CLIENT_ID: _CLIENT,
    CLIENT_SECRET: _SECRET,
    PRIVATE_KEY: _PRIVATE_KEY,
    ASSERTION: _TOKEN,
    LISTING_TOKEN: _TOKEN,
    ACTOR_TOKEN: _TOKEN,
    PROVIDER_ID: _CLIENT,
    PROVIDER_SECRET: _SECRET,
    PROVIDER_KEY: _PRIVATE_KEY,
    "scopes": list_of(_SCOPE, MAX_SCOPES),
    "issuer": _ADDRESS,
    "resource": _RESOURCE,
    "client_metadata_url": checked(_ADDRESS, _metadata_fault),
    "redirect_uri": checked(plain_text(longest=MAX_URL, empty=False), _redirect_fault),
    "parameters": _PARAMETERS,
    "identity_provider": _ADDRESS,
    **dict.fromkeys(ADDRESSES, _ENDPOINT),
}

_EACH: Final[Mapping[str, Reader[Any]]] = {
    key.name: reader_of(key.shape, _KEY_READERS.get(key.name)) for key in keys_of(Auth)
}
"""The readers of all keys, also of those that a shape describes."""


def _grant(grant: AuthGrant, subject: Subject) -> Reader[Auth]:
    def build(**given: Any) -> Auth:
        resolved = [path for path in given if path.startswith(_VALUES)]
        values = {path.removeprefix(_VALUES): given.pop(path) for path in resolved}
        return Auth(**{"grant": grant, "subject": subject, "values": values, **given})

    return record_of(keys_of(Auth), build, f"'{grant}'", _KEY_READERS, form=grant)


_READERS: Final[Mapping[str, Reader[Auth]]] = {
    grant: _grant(grant, subject) for grant, subject in SUBJECTS.items()
}


@reader(
    {
        "type": "object",
        "properties": {name: read.schema for name, read in _READERS.items()},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    }
)
def auth(node: Tree, where: Where) -> Auth:
    """Read the one grant of a server."""
    entries = entries_of(node, where)
    if len(entries) != 1:
        raise BadValue(
            f"{quoted(where.key)} must have exactly one key, the grant: {', '.join(_READERS)}."
        )
    (entry,) = entries
    place = where.child(entry)
    read = _READERS.get(entry.name)
    if read is None:
        message = f"{quoted(entry.name)} is not a grant: {suggestion(entry.name, tuple(_READERS))}"
        place.error(entry.at, IssueReason.UNKNOWN_KEY, message)
        raise BadValue  # already reported
    found = read.read(entry.value, place)
    fault = client_fault(found) or server_fault(found)
    if fault:
        raise BadValue(f"{quoted(place.key)} {fault}")
    return found


def tried(name: str, node: Tree, key: str) -> tuple[Any, Sequence[ConfigIssue]]:
    """Return what a value of one of a grant's keys means, and its mistakes; report nothing.

    It means None if it is of no use; a list with mistakes means its other items.

    Args:
        key: What the mistakes call the key.
    """
    log = IssueLog("")
    value = _EACH[name](node, Where(log, key))
    return value, [issue for issue in log.issues() if issue.severity == "error"]


def client_fault(found: Auth) -> str | None:
    """Return why what is said about the client does not fit together, or None.

    The text is the end of a sentence that begins with the grant.
    """
    has_secret, has_key = CLIENT_SECRET in found.values, PRIVATE_KEY in found.values
    if has_secret and has_key:
        return "has 'client_secret' and 'private_key'; keep the one that your client has."
    if PROVIDER_SECRET in found.values and PROVIDER_KEY in found.values:
        return f"has '{PROVIDER_SECRET}' and '{PROVIDER_KEY}'; keep the one that your client has."
    if found.grant == "client_credentials" and not has_secret and not has_key:
        return "needs 'client_secret' or 'private_key', such as client_secret: {secret: NAME}."
    if (has_secret or has_key) and CLIENT_ID not in found.values:
        return "needs 'client_id' beside the client's credential."
    if found.client_metadata_url and CLIENT_ID in found.values:
        return "has 'client_id' and 'client_metadata_url'; keep one of the two."
    if found.redirect_port and found.redirect_uri:
        return "has 'redirect_port' and 'redirect_uri'; write the port in 'redirect_uri'."
    if (found.algorithm or found.key_id) and not has_key:
        return "has 'algorithm' or 'key_id', which belong to 'private_key'; add it, or remove them."
    return None


def server_fault(found: Auth) -> str | None:
    """Return why what is said about the authorization server does not fit together, or None.

    The text is the end of a sentence that begins with the grant.
    """
    written = [name for name in ENDPOINTS if getattr(found, name)]
    if not written:
        return None
    if found.auth_server_metadata_url:
        return f"has '{METADATA_URL}', which names all endpoints, and '{written[0]}'; keep one."
    if not found.token_endpoint:
        return f"needs 'token_endpoint' beside '{written[0]}': endpoints replace all metadata."
    if found.grant == ID_JAG and not found.issuer:
        return "needs 'issuer' beside 'token_endpoint': the assertion about the caller names it."
    if found.grant != LOGIN:
        return None
    if not found.authorization_endpoint and not found.device_authorization_endpoint:
        return (
            "needs 'authorization_endpoint' or 'device_authorization_endpoint' beside"
            " 'token_endpoint': people log in there."
        )
    if found.authorization_endpoint and not found.issuer:
        return (
            "needs 'issuer' beside 'authorization_endpoint': a redirect from another authorization"
            " server is refused by it."
        )
    has_client = CLIENT_ID in found.values or found.client_metadata_url
    if not has_client and not found.registration_endpoint:
        return "needs 'client_id', or 'registration_endpoint', beside 'token_endpoint'."
    return None


def check_auth(server: TableEntry, values: Mapping[str, Any], where: Where) -> None:
    """Report a second `Authorization` header beside `auth`."""
    if not values.get("auth"):
        return
    message = (
        "'auth' obtains the header Authorization, and {0} sets it as well; keep one of the two."
    )
    for name in values.get("headers", ()):
        if name.lower() == "authorization":
            place, at = where.find(f"headers.{name}", server.at)
            place.error(at, IssueReason.BAD_VALUE, message.format(f"'headers.{name}'"))
    for name, credential in values.get("security", {}).items():
        if getattr(credential, "header", "").lower() == "authorization":
            place, at = where.find(f"security.{name}", server.at)
            place.error(at, IssueReason.BAD_VALUE, message.format(f"'security.{name}'"))

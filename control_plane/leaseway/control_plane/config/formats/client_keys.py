"""What the keys of a server mean in other clients' files: native, harmless, or a restriction.

A key that is none of these, but whose name looks like a restriction, refuses its server.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Final

from leaseway.control_plane.config.formats.tool_rules import folded
from leaseway.control_plane.config.tree.yaml_tree import (
    Items,
    Leaf,
    Table,
    TableEntry,
    Tree,
)

RENAMED: Final[Mapping[str, str]] = {
    "type": "transport",
    "transportType": "transport",
    "httpUrl": "url",
    "serverUrl": "url",
    "baseUrl": "url",
    "uri": "url",
    "endpoint": "url",
    "cmd": "command",
    "envs": "env",
    "environment": "env",
    "envFile": "env_file",
    "workingDirectory": "cwd",
    "working_directory": "cwd",
    "workingDir": "cwd",
    "working_dir": "cwd",
    "http_headers": "headers",
    "httpHeaders": "headers",
    "requestHeaders": "headers",
    "static_headers": "headers",
    "staticHeaders": "headers",
}
"""Keys of clients by the native key that they are spellings of."""

SECONDS: Final[Mapping[str, tuple[str, float | None]]] = {
    "timeout": ("call_timeout", None),
    "requesttimeout": ("call_timeout", None),
    "tooltimeoutsec": ("call_timeout", 1.0),
    "tooltimeoutms": ("call_timeout", 1_000.0),
    "timeoutms": ("call_timeout", 1_000.0),
    "startuptimeoutsec": ("startup_timeout", 1.0),
    "startuptimeoutms": ("startup_timeout", 1_000.0),
    "inittimeout": ("startup_timeout", None),
    "connectiontimeout": ("startup_timeout", None),
    "connecttimeout": ("startup_timeout", 1.0),
    "httptimeoutseconds": ("call_timeout", 1.0),
    "readtimeoutseconds": ("call_timeout", 1.0),
}
"""Folded keys of timeouts: the native key, and how many of their units are a second. None: a
number from 1,000 on is in milliseconds, a smaller one in seconds."""

READ_ONLY: Final = frozenset({"readonly", "readonlymode"})
APPROVAL_MODES: Final = frozenset(
    {"requireapproval", "approvalmode", "defaulttoolsapprovalmode", "toolapprovalmode"}
)
"""Folded keys whose values say whether a person is asked."""

CREDENTIAL_KEYS: Final = frozenset({"authvalue", "authenticationtoken"})
"""Folded keys of LiteLLM with a credential, whose kind its `auth_type` says."""
_CREDENTIALS: Final[Mapping[str, tuple[str, str]]] = {
    "bearertoken": ("Authorization", "Bearer {}"),
    "authorizationtoken": ("Authorization", "Bearer {}"),
    "basic": ("Authorization", "Basic {}"),
    "authorization": ("Authorization", "{}"),
    "apikey": ("X-API-Key", "{}"),
}
"""Kinds of credentials, of which a file has the value alone: the header, and its text."""


def credential_header(kind: str, text: str) -> tuple[str, str] | None:
    """Return the header that carries a credential, and its text; None if that can't be told."""
    if kind not in _CREDENTIALS:
        return None
    name, form = _CREDENTIALS[kind]
    text = text.removeprefix(form.format(""))  # "Bearer " may be there already
    if kind == "basic":  # LiteLLM encodes what the file has, which only a literal allows here
        if "${" in text:
            return None
        if ":" in text:  # no alphabet of base64 has it
            text = b64encode(text.encode()).decode()
    return name, form.format(text)


OPTIONS: Final = frozenset({"options", "requestoptions"})
"""Folded keys of the options of a request in JavaScript, whose times are milliseconds."""

NESTED: Final = OPTIONS | {"toolconfiguration", "requestinit", "transport", "anythingllm"}
"""Folded keys of mappings whose members count as keys of the server."""

_GRANT: Final = (
    "it says what runs without a question, and Leaseway asks no one except for tools with"
    " 'risk: financial'"
)
_SIGN_IN: Final = (
    "requests are sent without this sign-in; write what the server needs in 'headers' or 'auth'"
)
_SHOWN: Final = "only the client shows it"
_OWN: Final = "Leaseway decides it by itself"

HARMLESS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        (
            *("alwaysallow", "autoapprove", "autoapproval", "autoapprovetools", "autoallow"),
            *("alwaysapprove", "trust", "trusted", "istrusted", "autoapproved"),
        ),
        _GRANT,
    ),
    **dict.fromkeys(
        (
            *(
                "oauth",
                "auth",
                "authentication",
                "authprovidertype",
                "oauthscopes",
                "oauthresource",
            ),
            *("oauthclientid", "scopes", "headershelper", "targetaudience"),
            *("targetserviceaccount", "requiresoauth", "authtype", "apikey", "token"),
            *("accesstoken", "authtoken", *CREDENTIAL_KEYS),
        ),
        _SIGN_IN,
    ),
    **dict.fromkeys(
        (
            *("name", "title", "displayname", "icon", "iconurl", "iconpath", "version", "author"),
            *("homepage", "repository", "license", "tags", "category", "gallery", "comment"),
            *("note", "notes", "fromgalleryid", "serverinstructions", "includeinstructions"),
            *("chatmenu", "displaynameoverride", "bundled", "source", "schema"),
            "custominstructions",
        ),
        _SHOWN,
    ),
    **dict.fromkeys(
        (
            *("supportsparalleltoolcalls", "toolprefix", "toolnameprefix", "toolsprefix"),
            *("cachetoolslist", "dev", "disableautorestart", "autostart", "autoconnect"),
            *("required", "extensionname", "watchpaths", "restart", "dynamictools"),
        ),
        _OWN,
    ),
}
"""Folded keys that restrict nothing, with the reason, which completes "is not taken over: "."""

_WORDS: Final = (
    *("tool", "allow", "deny", "denied", "exclu", "includ", "disable", "enabled", "block"),
    *("permi", "filter", "restrict", "readonly", "scope", "sandbox", "approv", "confirm"),
    *("forbid", "whitelist", "blacklist", "only", "hide", "hidden", "limit", "quota", "policy"),
    *("policies", "rule", "guard", "acl", "role", "grant", "consent", "isolat", "secur", "trust"),
    *("expose", "visib", "protect", "reject", "prohibit", "safe", "danger", "risk", "privilege"),
    *("accessgroup", "accesscontrol", "accesslevel", "accesslist", "teams"),
)


_ADDED: Final = re.compile(
    "sandbox|restrict|readonly|block|den(?:y|ied)|disable|disallow|exclu|forbid|hid(?:e|den)"
)
"""How the name of a key begins that restricts something only if it is on, or lists something."""


def looks_restrictive(name: str) -> bool:
    """Return whether a key, by its name, may say what the server or its caller may not do."""
    key = folded(name)
    return key not in HARMLESS and any(word in key for word in _WORDS)


def may_restrict(entry: TableEntry) -> bool:
    """Return whether a key may say what the server or its caller may not do.

    One that adds a restriction, such as `sandboxEnabled`, adds none if it is off or empty. A switch
    says no more than the rest of its name (`logEnabled`), or, if it is on, than the key around it
    (`reconnect: {enabled: true}`).
    """
    key = folded(entry.name)
    is_on = entry.value.value if isinstance(entry.value, Leaf) else None
    if is_on is True or (is_on is False and key not in ("enabled", "isenabled")):
        key = key.removesuffix("enabled")
    if not looks_restrictive(key):
        return False
    if key.startswith("allowall") and isinstance(entry.value, Leaf) and entry.value.value is True:
        return False
    adds_one = _ADDED.match(key) is not None and len(_ADDED.findall(key)) == 1
    return not (adds_one and _is_off(entry.value))


def _is_off(node: Tree) -> bool:
    match node:
        case Leaf():
            return node.value is None or node.value is False or node.value == ""
        case Items():
            return not node.items
        case Table():
            return not node.entries


def restrictive_members(node: Tree) -> Iterator[TableEntry]:
    """Yield the keys anywhere below a value that look like restrictions."""
    match node:
        case Table():
            for entry in node.entries:
                if may_restrict(entry):
                    yield entry
                elif folded(entry.name) not in HARMLESS:
                    yield from restrictive_members(entry.value)
        case Items():
            for item in node.items:
                yield from restrictive_members(item)

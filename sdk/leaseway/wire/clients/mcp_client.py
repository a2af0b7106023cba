"""What an MCP client has declared about itself, on its way from a front to the servers.

A front admits it from the client, and a worker again from the front, with the same bounds. Members
that no front can honour, such as experimental capabilities and tasks, are left out: a server
must not rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from leaseway.wire.bounds import MAX_CLIENT, MAX_EXTENSIONS
from leaseway.wire.messages.mcp import ELICIT, ELICIT_URL, HANDSHAKE_VERSIONS, ROOTS, SAMPLE

CAPABILITIES: Final[Mapping[str, str]] = {
    ELICIT: "elicitation",
    SAMPLE: "sampling",
    ROOTS: "roots",
}
"""The client capability that each server request needs."""

_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "elicitation": ("form", "url"),
    "sampling": ("tools", "context"),
}
_INFO: Final = ("name", "version", "title", "websiteUrl", "description")
_NEEDED_INFO: Final = _INFO[:2]
_MAX_INFO: Final = 128
"""Characters of a member of `clientInfo`."""


class McpClient:
    """What an MCP client declares: its version, its capabilities, its program.

    Args:
        version: The protocol version that it speaks.
        capabilities: As it declared them.
        info: Its `clientInfo`, as it sent it.

    Attributes:
        version: As given.
        is_legacy: Whether its connections begin with `initialize`.
        capabilities: Those that can be honoured.
        info: Its name, version and texts; empty without a name.
        answers: The methods of server requests that it answers, and whether it opens addresses.
        encoded: All of it as one JSON object of at most `MAX_CLIENT` bytes.
    """

    __slots__ = ("answers", "capabilities", "encoded", "info", "is_legacy", "version")

    def __init__(self, version: str, capabilities: object, info: object = None) -> None:
        self.version = version[:_MAX_INFO]
        self.is_legacy = version in HANDSHAKE_VERSIONS
        self.info = _info(info)
        self.capabilities = _capabilities(capabilities)
        self.encoded = self._encode()
        if len(self.encoded) > MAX_CLIENT:  # only the settings of extensions have no bound
            self.capabilities.pop("extensions", None)
            self.info = {name: self.info[name] for name in _NEEDED_INFO if name in self.info}
            self.encoded = self._encode()
        self.answers = tuple(
            method for method, name in CAPABILITIES.items() if name in self.capabilities
        )
        if "url" in self.capabilities.get("elicitation", ()):
            self.answers = (*self.answers, ELICIT_URL)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, McpClient) and other.encoded == self.encoded

    def __hash__(self) -> int:
        return hash(self.encoded)

    def _encode(self) -> bytes:
        parts = {"version": self.version, "capabilities": self.capabilities, "info": self.info}
        return msgspec.json.encode(parts)

    def lacking(self, method: str, params: bytes) -> str:
        """Return the capability that a server request needs and this client lacks, or empty.

        A capability of a capability is `elicitation.url`, say.

        Args:
            params: Its params: a JSON object.
        """
        name = CAPABILITIES.get(method, method)
        declared = self.capabilities.get(name)
        if declared is None:
            return name
        if method == ELICIT:
            mode = _mode(params)
            is_declared = mode in declared or (mode == "form" and not declared)
            return "" if is_declared else f"{name}.{mode}"
        if method == SAMPLE and "tools" not in declared and _uses_tools(params):
            return f"{name}.tools"
        return ""


class ListedToClient(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a leased server lists, as its worker tells the gateway of the client that leased it.

    What it does not list to this client is told by its own names and URIs, at most `MAX_ABSENT`
    of each kind. None means that the instance has not been asked yet.

    Attributes:
        client: The client for which it was leased, as `McpClient.encoded`; empty if it was started
            before, as a spare: then only its own tools, prompts and resources are told.
        absent: Exposed tools that it does not list.
        absent_prompts: Exposed prompts that it does not list.
        absent_resources: The URIs of resources that it does not list.
        absent_templates: The URI templates that it does not list.
        own: The digest of the tools in which the lease differs (`ListLeaseTools`); empty if it does
            not. It holds for the session of the lease alone; so do the next two.
        own_prompts: That of the prompts in which it differs.
        own_resources: That of the resources and templates.
    """

    client: str
    absent: list[str]
    absent_prompts: tuple[str, ...] | None = None
    absent_resources: tuple[str, ...] | None = None
    absent_templates: tuple[str, ...] | None = None
    own: str = ""
    own_prompts: str = ""
    own_resources: str = ""


class _Declared(msgspec.Struct):
    version: str = ""
    capabilities: dict[str, Any] = {}
    info: dict[str, Any] = {}


_decode: Final = msgspec.json.Decoder(_Declared).decode


def parse_client(encoded: bytes) -> McpClient:
    """Return the client that another process has encoded.

    Raises:
        ValueError: It is no such object, or too large.
    """
    if len(encoded) > MAX_CLIENT:
        raise ValueError(f"it has {len(encoded)} bytes; the limit is {MAX_CLIENT}")
    try:
        declared = _decode(encoded)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return McpClient(declared.version, declared.capabilities, declared.info)


def _capabilities(declared: object) -> dict[str, Any]:
    """Return the capabilities that can be honoured, without any other content."""
    known: dict[str, Any] = {}
    if not isinstance(declared, dict):
        return known
    for name, options in _OPTIONS.items():
        value = declared.get(name)
        if isinstance(value, dict):
            known[name] = {option: {} for option in options if isinstance(value.get(option), dict)}
            if name == "elicitation" and value and not known[name]:
                del known[name]  # it answers in modes that no front knows
    roots = declared.get("roots")
    if isinstance(roots, dict):
        known["roots"] = {"listChanged": True} if roots.get("listChanged") is True else {}
    extensions = declared.get("extensions")
    if isinstance(extensions, dict):
        settings = {
            name: setting for name, setting in extensions.items() if isinstance(setting, dict)
        }
        if 0 < len(settings) <= MAX_EXTENSIONS:
            known["extensions"] = settings
    return known


def _info(declared: object) -> dict[str, str]:
    if not isinstance(declared, dict) or not isinstance(declared.get("name"), str):
        return {}
    known = {
        member: declared[member][:_MAX_INFO]
        for member in _INFO
        if isinstance(declared.get(member), str)
    }
    return {"version": "", **known}


class _Elicitation(msgspec.Struct):
    mode: Any = "form"


_decode_elicitation: Final = msgspec.json.Decoder(_Elicitation).decode
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _mode(params: bytes) -> str:
    try:
        mode = _decode_elicitation(params).mode
    except (ValueError, RecursionError):
        return "form"  # the client reports what is wrong with it
    return mode[:64] if isinstance(mode, str) else "form"


def _uses_tools(params: bytes) -> bool:
    try:
        members = _members(params)
    except (ValueError, RecursionError):
        return False
    return "tools" in members or "toolChoice" in members

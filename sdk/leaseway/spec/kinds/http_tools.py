"""Tools that are HTTP requests: typed definitions and their consistency checks. Pure.

The control plane reads them from configuration or an OpenAPI document and checks them; a worker
lists them and sends their requests.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal, get_args
from urllib.parse import unquote, urlsplit

from leaseway.spec.keys import (
    DAY,
    INSTANT,
    Choice,
    Duration,
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
from leaseway.wire.messages.json_schema import CHOICES, TOOL_HINTS
from leaseway.wire.messages.mcp import TRACEPARENT, TRACESTATE

Position = Literal["path", "query", "header", "cookie", "body"]
Body = Literal["json", "form", "multipart", "binary", "text", "lines"]
Style = Literal[
    "repeat", "comma", "space", "pipe", "spread", "deep", "json", "label", "matrix", "bare"
]


METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "QUERY")
POSITIONS: Final[tuple[Position, ...]] = get_args(Position)
BODIES: Final[tuple[Body, ...]] = get_args(Body)
STYLES: Final[tuple[Style, ...]] = get_args(Style)
"""How lists and mappings are serialized: `a=1&a=2`, `a=1,2`, `a=1 2`, `a=1|2`, each member of a
mapping as a separate pair, `a[b]=1`, JSON, in paths `.1.2` and `;a=1,2`, and in a query the value
alone, without a name."""
JOINED_STYLES: Final[tuple[Style, ...]] = ("comma", "space", "pipe")
"""Styles that write a list as one text, with separators."""

IDEMPOTENT: Final = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "QUERY")
"""Methods that may be retried when it is unknown whether the request arrived."""
READ_METHODS: Final = ("GET", "HEAD", "OPTIONS")
"""Methods that change nothing and whose parameters are in the query, if nothing else is said."""
SAFE_METHODS: Final = (*READ_METHODS, "QUERY")
"""Methods that change nothing."""
BODILESS_METHODS: Final = ("HEAD", "OPTIONS")
"""Methods whose requests have no body. GET has one where an API asks for it (RFC 9110, 9.3.1)."""
DESTRUCTIVE: Final = ("PUT", "PATCH", "DELETE")
"""Methods that may change or remove what is there already."""


def _listed(methods: Iterable[str]) -> str:
    *others, last = methods
    return f"{', '.join(others)} and {last}"


MAX_TOOLS: Final = 2_000
"""Limit of tools of one server."""
MAX_PARAMETERS: Final = 200
"""Limit of parameters of one tool."""
MAX_RETRIES: Final = 5
MAX_CREDENTIALS: Final = 20
"""Limit of credentials of one server."""
OF_AUTH: Final = "auth"
"""What the token of a server's `auth` is called among its credentials."""

_PLACEHOLDER: Final = re.compile(r"\{([^{}]*)\}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_MEDIA_TYPE: Final = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}(; ?[A-Za-z0-9-]{1,64}=[\w.+-]{1,64})*"
)
RESERVED_HEADERS: Final = frozenset(
    ("host", "content-length", "content-type", "transfer-encoding", "connection", "keep-alive",
     "te", "trailer", "upgrade", "proxy-authorization", "proxy-connection", "expect",
     TRACEPARENT, TRACESTATE)
)  # fmt: skip
"""Headers that no parameter sets, because Leaseway or HTTP itself does; in lower case."""
_MAX_NAME: Final = 128
_MAX_URL: Final = 2_048

HINT_KEYS: Final = tuple(
    Key(Flag(), "Overrides what the method implies.", hint) for hint in TOOL_HINTS
)
"""The keys inside `annotations`."""


@dataclass(frozen=True)
class HttpParameter:
    """One parameter of a tool; its keys say what each field means.

    Attributes:
        schema: Its whole JSON Schema, as JSON text.
        wire_name: Its name in the request; empty means `name`.
    """

    name: str = field(
        metadata=declared(
            Key(Text(_MAX_NAME, empty=False), "Its name, as callers see it.", required=True)
        )
    )
    position: Position = field(
        metadata=declared(
            Key(
                Choice(POSITIONS),
                "Where the request has it.",
                default="`path` if the endpoint has its name, else `body` or `query`",
            )
        )
    )
    schema: str = setting(
        "{}", Key(OwnReader(), "More of its JSON Schema, over the keywords beside it.")
    )
    required: bool = setting(False, Key(Flag(), "Whether callers must give it."))
    wire_name: str = setting(
        "", Key(Text(256, empty=False), "Its name in the request.", "as", default="`name`")
    )
    style: Style = setting(
        "repeat",
        Key(
            Choice(STYLES),
            "How a list or object is written: `a=1&a=2`, `a=1,2`, with spaces or pipes between,"
            " each member as a pair of its own, `a[b]=1`, JSON; in paths also `.a,b` or `;id=a,b`;"
            " in a query also the value without a name.",
        ),
    )
    is_body: bool = setting(
        False, Key(Flag(), "Whether it is the whole body, not a member of it.", "whole_body")
    )
    explode: bool = setting(
        False,
        Key(
            Flag(),
            "Whether `comma`, `label` and `matrix` write members as `name=value`, and the latter"
            " two each item on its own.",
        ),
    )
    allow_reserved: bool = setting(
        False,
        Key(
            Flag(),
            "Whether `/`, `:`, `?`, `@`, `,`, `=` and the like stay as they are in a query; what"
            " would end the value is encoded all the same.",
        ),
    )

    @property
    def sent_as(self) -> str:
        """Its name in the request."""
        return self.wire_name or self.name

    @property
    def target(self) -> str:
        """What it sets in a request; equal to that of a credential that sets the same."""
        is_header = self.position == "header"
        return f"{self.position} {self.sent_as.lower() if is_header else self.sent_as}"

    @cached_property
    def parsed(self) -> Mapping[str, Any]:
        """Its JSON Schema, for its calls: it stays, and takes several times the text."""
        return self.parse()

    def parse(self) -> Mapping[str, Any]:
        """Return its JSON Schema."""
        schema: dict[str, Any] = json.loads(self.schema)
        return schema

    @cached_property
    def is_binary(self) -> bool:
        """Whether its text, or each text of its list, is base64 of the bytes to send."""
        return any(map(holds_bytes, _schemas_of_texts(self.parse())))

    @cached_property
    def media_type(self) -> str:
        """The media type of its bytes or text; empty if it has none."""
        kinds = (text.get("contentMediaType") for text in _schemas_of_texts(self.parsed))
        return next((kind for kind in kinds if isinstance(kind, str) and kind.isprintable()), "")

    @cached_property
    def accepts_null(self) -> bool:
        return accepts_null(self.parsed)


@dataclass(frozen=True)
class HttpTool:
    """One tool that is an HTTP request; its keys say what each field means, also when empty.

    Attributes:
        name: Its name, unique in its server.
        timeout: Seconds for the whole request with its retries, or None for the call's limit.
        annotations: Overrides for the annotations that follow from the method, by MCP name.
        security: The names of the server's credentials that its requests have; None for all.
    """

    name: str = field(
        metadata=declared(
            Key(OwnReader(), "Its name: letters, digits, `_` and `-`, at most 64.", required=True)
        )
    )
    method: str = field(metadata=declared(Key(Choice(METHODS), "The HTTP method.", required=True)))
    endpoint: str = field(
        metadata=declared(
            Key(
                OwnReader(),
                "A path below `base_url`, with `{name}` for path parameters; may have a fixed"
                " query.",
                required=True,
            )
        )
    )
    # Shown as they are: a `${` in these texts is not a reference.
    description: str = setting("", Key(OwnReader(), "What it does, as callers see it."))
    title: str = setting("", Key(OwnReader(), "Its name for people."))
    parameters: tuple[HttpParameter, ...] = setting(
        (),
        Key(
            OwnReader(),
            "What callers give it; a parameter also has keywords of JSON Schema: `type`,"
            " `description`, `default`, `enum` and so on.",
            inside=tuple(keys_of(HttpParameter)),
        ),
    )
    body: Body = setting("json", Key(Choice(BODIES), "How body parameters are encoded."))
    content_type: str = setting(
        "",
        Key(Text(256, empty=False), "The body's content type.", default="as `body` implies"),
    )
    response_template: str = setting(
        "",
        Key(
            OwnReader(),
            "A [template](rest-tools.md#response-templates) that makes text of the response.",
            default="the response as it is",
        ),
    )
    timeout: float | None = setting(
        None,
        Key(
            Duration(INSTANT, DAY),
            "The limit for the request with its retries.",
            default="that of the call",
        ),
    )
    retries: int = setting(
        0,
        Key(
            Whole(0, MAX_RETRIES),
            f"How often the request is repeated; only {_listed(IDEMPOTENT)} may be sent twice.",
            default="the server's",
        ),
    )
    annotations: tuple[tuple[str, bool], ...] = setting(
        (),
        Key(
            OwnReader(),
            f"Overrides of what the method implies: `readOnlyHint` for {_listed(SAFE_METHODS)},"
            f" `destructiveHint` for {_listed(DESTRUCTIVE)}, `idempotentHint` for"
            f" {_listed(method for method in IDEMPOTENT if method not in SAFE_METHODS)}.",
            inside=HINT_KEYS,
        ),
    )
    security: tuple[str, ...] | None = setting(
        None,
        Key(
            ListOf(Text(256, empty=False), MAX_CREDENTIALS + 1),
            "The names of the server's `security` that its requests have, and `auth` for the token"
            " of its `auth`; none with `[]`.",
            default="all",
        ),
    )
    base_url: str = setting(
        "",
        Key(
            OwnReader(),
            "The tool's own server: an address, or a path at the origin of the server's"
            " `base_url`.",
            default="the server's",
        ),
    )
    send_credentials: bool = setting(
        False,
        Key(
            Flag(),
            "Whether `headers` and `security` are sent to its `base_url` even if that has another"
            " origin.",
        ),
    )

    def __str__(self) -> str:
        return f"{self.name}: {self.method} {self.base_url}{self.endpoint}"

    @property
    def path(self) -> str:
        return self.endpoint.partition("?")[0]


@dataclass(frozen=True)
class ToolFault:
    """An inconsistency of a tool.

    Attributes:
        about: The faulty key of the tool: `endpoint`, `parameters` …
        message: The rest of a sentence that starts with the tool's name.
        parameter: The index of the parameter, or None.
    """

    about: str
    message: str
    parameter: int | None = None


def holds_bytes(schema: object) -> bool:
    return isinstance(schema, dict) and (
        schema.get("format") == "binary" or schema.get("contentEncoding") == "base64"
    )


_MAX_CHOICES: Final = 8
"""Levels of alternatives of a schema that are searched for bytes and for null."""


def _schemas_of_texts(schema: object, depth: int = _MAX_CHOICES) -> Iterator[Mapping[str, Any]]:
    """Yield a schema, and those of its alternatives and of its items."""
    if not isinstance(schema, dict) or depth <= 0:
        return
    yield schema
    for key in CHOICES:
        parts = schema.get(key)
        for part in parts if isinstance(parts, list) else ():
            yield from _schemas_of_texts(part, depth - 1)
    yield from _schemas_of_texts(schema.get("items"), depth - 1)


def accepts_null(schema: object, depth: int = _MAX_CHOICES) -> bool:
    """Return whether null is a value of a schema; true if that can't be told."""
    if not isinstance(schema, dict) or depth <= 0:
        return schema is not False
    names = schema.get("type", "null")
    if names != "null" and not (isinstance(names, list) and "null" in names):
        return False
    values = schema.get("enum", [schema.get("const")])
    if isinstance(values, list) and None not in values:
        return False
    for key in ("anyOf", "oneOf"):
        parts = schema.get(key)
        if isinstance(parts, list) and not any(accepts_null(part, depth - 1) for part in parts):
            return False
    parts = schema.get("allOf")
    return not isinstance(parts, list) or all(accepts_null(part, depth - 1) for part in parts)


def placeholders(endpoint: str) -> tuple[str, ...]:
    """Return the names in braces of an endpoint, in order."""
    return tuple(_PLACEHOLDER.findall(endpoint))


def is_media_type(text: str) -> bool:
    return _MEDIA_TYPE.fullmatch(text) is not None


def is_base_url(text: str) -> bool:
    """Return whether a text can be the address of a tool's own server, or its path."""
    if len(text) > _MAX_URL or any(
        c.isspace() or not c.isprintable() or c in "\\?#{}" for c in text
    ):
        return False
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    if any(unquote(part) in (".", "..") for part in parts.path.split("/")):
        return False
    if text.startswith("/"):
        return not text.startswith("//")
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and "@" not in parts.netloc
        and port != 0
    )


@dataclass(frozen=True)
class SetNames:
    """What a server's `headers` and `security` set, which no parameter sets as well.

    Attributes:
        headers: In lower case.
        query: Query parameters.
        cookies: Cookies; None if a header sets all of them.
    """

    headers: Container[str] = ()
    query: Container[str] = ()
    cookies: Container[str] | None = ()

    def has(self, parameter: HttpParameter) -> bool:
        name = parameter.sent_as
        match parameter.position:
            case "header":
                return name.lower() in self.headers
            case "query":
                return name in self.query
            case "cookie":
                return self.cookies is None or name in self.cookies
            case _:
                return False


def without_parameters(tool: HttpTool, names: SetNames) -> HttpTool:
    """Return a tool without the parameters that its server sets."""
    kept = [parameter for parameter in tool.parameters if not names.has(parameter)]
    return tool if len(kept) == len(tool.parameters) else replace(tool, parameters=tuple(kept))


def find_faults(tool: HttpTool) -> Iterator[ToolFault]:
    """Yield the inconsistencies of a tool."""
    yield from _endpoint_faults(tool)
    if tool.base_url and not is_base_url(tool.base_url):
        yield ToolFault(
            "base_url",
            "has a base_url that is neither an http or https address without a query nor a path"
            " that begins with one '/'",
        )
    yield from _path_faults(tool)
    yield from _name_faults(tool)
    for number, parameter in enumerate(tool.parameters):
        text = _parameter_fault(tool, parameter)
        if text:
            yield ToolFault("parameters", text, number)
    yield from _body_faults(tool)
    if tool.retries and tool.method not in IDEMPOTENT:
        yield ToolFault(
            "retries",
            f"has 'retries', but {tool.method} may not be sent twice; only "
            f"{_listed(IDEMPOTENT)} are retried",
        )


def _endpoint_faults(tool: HttpTool) -> Iterator[ToolFault]:
    endpoint = tool.endpoint
    path, _, query = endpoint.partition("?")
    bare = _PLACEHOLDER.sub("", endpoint)
    if not endpoint.startswith("/") or endpoint.startswith("//"):
        text = "has an endpoint that does not begin with one '/': it is a path below 'base_url'"
    elif any(char.isspace() or not char.isprintable() or char in '\\"<>^`|' for char in endpoint):
        text = "has an endpoint with a character that no address may have; percent-encode it"
    elif "#" in endpoint:
        text = "has an endpoint with a '#', which servers never see"
    elif "{" in bare or "}" in bare:
        text = "has an endpoint with a brace that is not closed"
    elif any(unquote(part) in (".", "..") for part in path.split("/")):
        text = "has an endpoint with '.' or '..' as a part, which leads elsewhere"
    elif placeholders(query):
        text = "has a placeholder in the endpoint's query; write a parameter with position: query"
    else:
        return
    yield ToolFault("endpoint", text)


def _path_faults(tool: HttpTool) -> Iterator[ToolFault]:
    in_path = {parameter.sent_as for parameter in tool.parameters if parameter.position == "path"}
    wanted = placeholders(tool.path)
    for name in dict.fromkeys(wanted):
        if name not in in_path:
            yield ToolFault(
                "endpoint",
                f"has the placeholder {{{name[:64]}}} in its endpoint, and no parameter "
                f"{name[:64]!r} with position: path",
            )
    for number, parameter in enumerate(tool.parameters):
        if parameter.position == "path" and parameter.sent_as not in wanted:
            text = (
                f"has the path parameter {parameter.sent_as[:64]!r}, and its endpoint no "
                f"placeholder {{{parameter.sent_as[:64]}}}"
            )
            yield ToolFault("parameters", text, number)


def _name_faults(tool: HttpTool) -> Iterator[ToolFault]:
    seen: set[str] = set()
    for number, parameter in enumerate(tool.parameters):
        name = parameter.name
        if name in seen:
            yield ToolFault("parameters", f"has two parameters called {name[:64]!r}", number)
        seen.add(name)
    sent = Counter(
        (
            parameter.position,
            parameter.sent_as.lower() if parameter.position == "header" else parameter.sent_as,
        )
        for parameter in tool.parameters
    )
    for (position, name), times in sent.items():
        if times > 1 and len(seen) == len(tool.parameters):
            yield ToolFault("parameters", f"sends {name[:64]!r} twice as {position}")


def _parameter_fault(tool: HttpTool, parameter: HttpParameter) -> str | None:
    name, shown = parameter.sent_as, repr(parameter.name[:64])
    if not 0 < len(parameter.name) <= _MAX_NAME or not parameter.name.isprintable():
        return "has a parameter whose name is empty, too long or not printable"
    if parameter.position == "header":
        if not _TOKEN.fullmatch(name):
            return f"has the header parameter {shown}, which is not a valid header name"
        if name.lower() in RESERVED_HEADERS:
            return f"has the header parameter {shown}, a header that Leaseway sets itself"
    if parameter.position == "cookie" and not _TOKEN.fullmatch(name):
        return f"has the cookie parameter {shown}, which is not a valid name of a cookie"
    if parameter.position == "body" and tool.method in BODILESS_METHODS:
        return f"has the body parameter {shown}, but {tool.method} has no body"
    return None


def _body_faults(tool: HttpTool) -> Iterator[ToolFault]:
    members = [parameter for parameter in tool.parameters if parameter.position == "body"]
    whole = [member for member in members if member.is_body]
    if whole and len(members) > 1:
        yield ToolFault(
            "parameters", "has a parameter that is the whole body, and other body parameters"
        )
    if tool.content_type and not _MEDIA_TYPE.fullmatch(tool.content_type):
        yield ToolFault(
            "content_type", "has an invalid content_type; write one such as application/json"
        )
    if tool.body == "multipart" and not _is_multipart(tool.content_type or "multipart/form-data"):
        yield ToolFault(
            "content_type",
            "has 'body: multipart' and a content_type that is none of its kinds, such as"
            " multipart/related, or has a boundary, which each request has of its own",
        )
    if tool.body in ("binary", "text", "lines") and members and not whole and len(members) != 1:
        yield ToolFault("body", f"has 'body: {tool.body}', which needs exactly one body parameter")


def _is_multipart(kind: str) -> bool:
    name, _, parameters = kind.lower().partition(";")
    return name.startswith("multipart/") and "boundary" not in parameters

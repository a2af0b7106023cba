"""The keys that only servers of some kinds have, a tuple for each kind."""

from __future__ import annotations

from typing import Final

from leaseway.spec.http_tools import MAX_RETRIES
from leaseway.spec.keys import Choice, Flag, Key, OwnReader, Whole
from leaseway.spec.model import INHERIT_ENV, PROCESSES

PROTOCOLS: Final = (
    "auto",
    "legacy",
    "2026-07-28",
    "2025-11-25",
    "2025-06-18",
    "2025-03-26",
    "2024-11-05",
)
"""Values of `protocol:`."""

_OWN: Final = OwnReader()
_MCP: Final = (
    Key(
        Choice(PROTOCOLS),
        "The version of MCP: `auto`, `legacy` (with a handshake), or one such as `2026-07-28`.",
        "protocol",
        value="auto",
    ),
)
_PROCESS: Final = (
    Key(
        _OWN,
        "Environment variables: literals or [references](#secrets).",
        "env",
        domain="set_known_names",
        by_name=True,
    ),
    # Leaseway enforces these only for processes that it starts itself.
    Key(
        Choice(INHERIT_ENV),
        "Which of the worker's variables it inherits: `safe` (none with a name that looks secret),"
        " `all` or `none`.",
        "inherit_env",
        value="safe",
    ),
    Key(
        _OWN,
        "`memory`, `cpu`, `open_files` and `processes` of each instance.",
        "limits",
        default="unlimited",
    ),
    Key(
        _OWN,
        "`true`, `strict`, or `level` (`basic`, `strict`), `network` and `writable`: runs its"
        " process in bubblewrap; [what each level blocks](security.md#what-holds-a-server).",
        "sandbox",
        default="off",
    ),
)
_COMMAND: Final = (
    Key(_OWN, "The program.", "command", required=True, instead="image"),
    Key(_OWN, "Its arguments.", "args"),
    Key(
        _OWN,
        "Its working directory: absolute, `${NAME}` allowed, with `image` inside the container;"
        " `private`: [an empty folder for each client](#state-in-files).",
        "cwd",
        default="the worker's",
    ),
    Key(
        _OWN,
        "A file of `NAME=VALUE` lines on the worker, watched like a `{file}`; `env` overrides it.",
        "env_file",
    ),
)
_CONTAINER: Final = (
    Key(
        _OWN,
        "The container image of the server; each instance is a container:"
        " [servers as images](kubernetes.md#servers-as-images).",
        "image",
    ),
    Key(
        _OWN,
        "On Kubernetes, the PodTemplateSpec that its pods are based on.",
        "podTemplate",
        "pod_template",
    ),
)
_PYTHON: Final = (
    Key(
        _OWN,
        "The module of the class: [Python classes](python-servers.md).",
        "module",
        required=True,
    ),
    Key(_OWN, "The name of the class.", "class", "class_name", required=True),
    Key(
        _OWN,
        "A mapping that the class receives; may contain references.",
        "config",
        domain="set",
        by_name=True,
    ),
)
_BUILTIN: Final = (
    Key(
        _OWN, "The folders that file tools may reach: [the kit](kit.md).", "roots", "builtin.roots"
    ),
    Key(_OWN, "The command lines that may be executed.", "commands", "builtin.commands"),
    Key(
        _OWN,
        "The hosts that requests may be sent to.",
        "hosts",
        "builtin.hosts",
        default="public ones",
    ),
)
_REQUESTS: Final = (
    Key(
        _OWN,
        "HTTP headers: literals or [references](#secrets).",
        "headers",
        domain="set_known_names",
        by_name=True,
    ),
    Key(
        _OWN,
        "`none`, the address of a forward proxy, a reference to one, or `{url, username,"
        " password}`: see [proxies](#proxies).",
        "proxy",
        default="the environment's",
    ),
    Key(
        _OWN,
        "How workers obtain OAuth tokens for its requests: see"
        " [remote servers](remote-servers.md).",
        "auth",
        default="none",
    ),
)
_REMOTE: Final = (Key(_OWN, "The address of the server.", "url", required=True),)
_STREAMABLE: Final = (
    Key(_OWN, "The MCP session to join.", "sessionId", "session_id", default="a new one"),
)
_API: Final = (
    Key(
        _OWN,
        "The address that its requests start with: [REST APIs](rest-tools.md).",
        "base_url",
        "url",
        default="the document's",
    ),
    Key(_OWN, "The tools, each of which is an HTTP request.", "http_tools"),
    Key(_OWN, "The file or URL of an OpenAPI document; its operations become tools.", "openapi"),
    Key(
        _OWN,
        "Credentials of requests; without `type`, for a security scheme of the document.",
        "security",
    ),
    Key(Flag(), "Whether redirects are followed.", "follow_redirects", value=False),
    Key(Whole(0, MAX_RETRIES), "How often an idempotent request is repeated.", "retries", value=0),
)
FOR_REGISTERED: Final = frozenset(
    {"protocol", "command", "args", "env", "url", "headers", "sessionId"}
)
_STDIO: Final = frozenset({"stdio"})
_NETWORK: Final = frozenset({"streamable_http", "sse", "websocket"})
_HTTP_API: Final = frozenset({"http_api"})
OF_KINDS: Final = (
    (_MCP, PROCESSES | _NETWORK),
    (_COMMAND, _STDIO),
    (_CONTAINER, _STDIO),
    (_PYTHON, frozenset({"python"})),
    (_BUILTIN, frozenset({"builtin"})),
    (_PROCESS, PROCESSES),
    (_REMOTE, _NETWORK),
    (_REQUESTS, _NETWORK | _HTTP_API),
    (_STREAMABLE, frozenset({"streamable_http"})),
    (_API, _HTTP_API),
)

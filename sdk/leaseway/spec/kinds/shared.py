"""Settings that several kinds of servers have: MCP, processes of the worker, requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from leaseway.spec.auth import NO_AUTH, Auth
from leaseway.spec.keys import Choice, Key, Need, OwnReader, keys_of, setting
from leaseway.spec.kinds.confinement import NO_LIMITS, NO_SANDBOX, Limits, Sandbox
from leaseway.spec.lease_names import shared_part
from leaseway.spec.model import INHERIT_ENV, InheritEnv, Part
from leaseway.spec.references import Value
from leaseway.wire.messages.mcp import HANDSHAKE_VERSIONS, MODERN_VERSIONS

PROTOCOLS: Final = (
    "auto",
    "legacy",
    *reversed((*HANDSHAKE_VERSIONS, *MODERN_VERSIONS)),
)
"""Values of `protocol:`."""
HTTP_SCHEMES: Final = ("http", "https")

# Keys that registered transports accept, too.
COMMAND: Final = Key(
    OwnReader(), "The program.", "command", required=True, instead="image", replaces="names"
)
ARGS: Final = Key(OwnReader(), "Its arguments.", "args", replaces="lease_names")
ENV: Final = Key(
    OwnReader(),
    "Environment variables: literals or [references](#secrets).",
    "env",
    replaces="lease_names",
    domain="set_known_names",
    by_name=True,
)
URL: Final = Key(OwnReader(), "The address of the server.", "url", required=True, replaces="names")
HEADERS: Final = Key(
    OwnReader(),
    "HTTP headers: literals or [references](#secrets).",
    "headers",
    replaces="names",
    domain="set_known_names",
    by_name=True,
)
PROXY: Final = (
    Key(
        OwnReader(),
        "The address of the proxy: a literal without credentials, or a [reference](#secrets).",
        "url",
        required=True,
        replaces="names",
    ),
    Key(OwnReader(), "The user at the proxy.", "username", replaces="names"),
    Key(
        OwnReader(),
        "The user's password: a [reference](#secrets).",
        "password",
        replaces="names",
        secret=True,
    ),
)
"""The keys inside `proxy`."""
SESSION_ID: Final = Key(
    OwnReader(),
    "The MCP session to join.",
    "sessionId",
    default="a new one",
    only=("streamable_http",),
    replaces="names",
)


_OF_WINDOWS: Final = ("cmd", "powershell", "wsl")
"""Programs by which files written on Windows start others, as in `cmd /c npx`."""
_is_of_windows: Final = re.compile(r"[a-z]:[\\/]|.+\.(?:exe|cmd|bat|ps1)\Z", re.IGNORECASE).match


def command_needs(command: str) -> Iterable[Need]:
    """Return what a command needs of the machine that it is started on."""
    if not command:
        return
    advice = advice_on_missing(command).replace("{", "{{").replace("}", "}}")
    yield Need("command", "program", command, f"The command '{{}}' is not found here; {advice}.")


def advice_on_missing(command: str) -> str:
    """Return what to do about a command that is not found, as a clause that says so."""
    program, _, rest = command.partition(" ")
    if "://" in program:
        return "it is an address, which belongs under 'url'"
    if program.lower().removesuffix(".exe") in _OF_WINDOWS:
        return "it belongs to Windows: write the program that it starts, such as 'npx', as command"
    if _is_of_windows(command):
        return "it belongs to Windows: write the program as workers call it, such as 'npx'"
    if rest and not {"/", "\\"} & set(program):  # paths may have spaces
        return "write only the program there, and the rest as a list in 'args'"
    if program.startswith("~"):
        return "write ${HOME} in the place of '~'"
    return "install it where workers run, or write its full path"


@dataclass(frozen=True)
class McpPart(Part):
    """A server that speaks MCP."""

    protocol: str = setting(
        "auto",
        Key(
            Choice(PROTOCOLS),
            "The version of MCP: `auto`, `legacy` (with a handshake), or one such as `2026-07-28`.",
        ),
    )


def _sandbox_needs(sandbox: Sandbox) -> Iterable[Need]:
    if not sandbox.enabled:
        return
    yield Need(
        "sandbox",
        "program",
        "bwrap",
        "A sandbox needs bubblewrap (bwrap), which is not found here; install it where workers"
        " run: without it the server is not started.",
    )
    for index, path in enumerate(sandbox.writable_paths):
        yield Need(
            f"sandbox.writable[{index}]",
            "path",
            path,
            "The sandbox makes {} writable, which does not exist here.",
        )


@dataclass(frozen=True)
class ChildPart(McpPart):
    """A server whose instances are child processes of the worker, connected by pipes."""

    uses_pipes: ClassVar[bool] = True
    on_worker: ClassVar[bool] = True

    env: Mapping[str, Value] = setting({}, ENV)
    # Leaseway enforces these only for processes that it starts itself.
    inherit_env: InheritEnv = setting(
        "safe",
        Key(
            Choice(INHERIT_ENV),
            "Which of the worker's variables it inherits: `safe` (none with a name that looks"
            " secret), `all` or `none`.",
        ),
    )
    limits: Limits = setting(
        NO_LIMITS,
        Key(
            OwnReader(),
            "`memory`, `cpu`, `open_files` and `processes` of each instance.",
            default="unlimited",
            inside=tuple(keys_of(Limits)),
        ),
    )
    sandbox: Sandbox = setting(
        NO_SANDBOX,
        Key(
            OwnReader(),
            "`true`, `strict`, or `level` (`basic`, `strict`), `network` and `writable`: runs its"
            " process in bubblewrap; [what each level blocks](security.md#what-holds-a-server).",
            default="off",
            inside=tuple(keys_of(Sandbox)),
        ),
    )

    @property
    def named_folders(self) -> tuple[str, ...]:
        return self.sandbox.writable_paths

    @property
    def needs(self) -> Iterable[Need]:
        return _sandbox_needs(self.sandbox) if self.on_worker else ()

    @property
    def has_confined_process(self) -> bool:
        return self.sandbox.enabled


@dataclass(frozen=True)
class CommandPart(ChildPart):
    """A server whose entry has a command, or the arguments of an image's own.

    Attributes:
        pod_template: The PodTemplateSpec, as JSON, that pods are based on; it has no effect without
            an image.
    """

    command: str = setting("", COMMAND)
    args: tuple[str, ...] = setting((), ARGS)
    cwd: str = setting(
        "",
        Key(
            OwnReader(),
            "Its working directory: absolute, `${NAME}` allowed, with `image` inside the"
            " container; `private`: [an empty folder for each client](#state-in-files).",
            default="the worker's",
            replaces="lease_names",
        ),
    )
    env_file: str = setting(
        "",
        Key(
            OwnReader("file"),
            "A file of `NAME=VALUE` lines on the worker, watched like a `{file}`; a value in quotes"
            " may have several lines. `env` overrides it.",
        ),
    )
    pod_template: str = setting(
        "",
        Key(
            OwnReader("json"),
            "On Kubernetes, the PodTemplateSpec that its pods are based on.",
            name="podTemplate",
        ),
    )

    @property
    def needs(self) -> Iterable[Need]:
        command = command_needs(self.command) if self.on_worker else ()
        return (*command, *super().needs)

    @property
    def named_folders(self) -> tuple[str, ...]:
        """The working folder (without the part for one lease) and the sandbox's writable paths."""
        return (shared_part(self.cwd), *super().named_folders)


@dataclass(frozen=True)
class RequestPart(Part):
    """A server that is reached by HTTP requests.

    Attributes:
        proxy: `url` (or the literal `none`), `username` and `password`; empty means the
            environment's.
    """

    url: str = ""
    headers: Mapping[str, Value] = setting({}, HEADERS)
    proxy: Mapping[str, Value] = setting(
        {},
        Key(
            OwnReader(),
            "`none`, the address of a forward proxy, a reference to one, or `{url, username,"
            " password}`: see [proxies](#proxies).",
            default="the environment's",
            replaces="names",
            inside=PROXY,
        ),
    )
    auth: Auth = setting(
        NO_AUTH,
        Key(
            OwnReader(),
            "How workers obtain OAuth tokens for its requests: see"
            " [remote servers](remote-servers.md).",
            default="none",
            replaces="names",
            inside=tuple(keys_of(Auth)),
        ),
    )

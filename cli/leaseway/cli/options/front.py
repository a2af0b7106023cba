"""Options of a front: who may reach it, which tools it lists, how it sends media."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import click

from leaseway.cli.options.common import SECONDS, checked_web_url
from leaseway.cli.options.groups import arguments_for, grouped_options
from leaseway.wire.bounds import SESSIONS_PER_CLIENT, SHUTDOWN_TIMEOUT
from leaseway.wire.channels.endpoint import Endpoint, host_in, origin_in
from leaseway.wire.messages.mcp import (
    CONVERSATION_KEYS,
    DEFAULT_SESSION_RULES,
    SESSION_ARGUMENT,
    SESSION_RULES,
)

if TYPE_CHECKING:
    from leaseway.front.calling.media import MediaMode


@dataclass(frozen=True)
class FrontReach:
    """How MCP clients reach a front, and what it lists to them.

    Attributes:
        origins: Allowed origins of web pages, in addition to those of this machine.
        hosts: Allowed host names, in addition to those of this machine.
        public_url: The front's URL behind a proxy, or empty.
        tools: `all`, or `search` to list three search tools instead of all tools.
        media: How to send images and sounds to clients that don't choose.
        handles: Whether clients without sessions are offered handles, arguments and cookies.
        sessions_from: What says to which session a call belongs, in order.
        session_argument: The preferred name of the argument for the session.
        conversation_keys: The keys of `_meta` in which hosts send ids of their conversations.
        sessions_per_client: The limit of sessions with leases of one client of one principal.
        drain_timeout: Seconds that requests in flight get when the front ends.
    """

    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    public_url: str = ""
    tools: Literal["all", "search"] = "all"
    media: MediaMode = "inline"
    handles: bool = True
    sessions_from: tuple[str, ...] = DEFAULT_SESSION_RULES
    session_argument: str = SESSION_ARGUMENT
    conversation_keys: tuple[str, ...] = CONVERSATION_KEYS
    sessions_per_client: int = SESSIONS_PER_CLIENT
    drain_timeout: float = SHUTDOWN_TIMEOUT

    def hosts_at(self, listen: Endpoint) -> tuple[str, ...]:
        """Return the allowed `Host` names of requests; empty means all."""
        name = urlsplit(self.public_url).hostname
        if name is None or not (self.hosts or listen.is_loopback):
            return self.hosts
        return (*self.hosts, name)  # a proxy may forward its client's header

    def as_arguments(self) -> list[str]:
        """Return these options for a child process."""
        return arguments_for(_OPTIONS, self)


def _parse_rules(_context: click.Context, _option: click.Parameter, words: str) -> tuple[str, ...]:
    rules = tuple(word.strip() for word in words.split(",") if word.strip())
    unknown = next((rule for rule in rules if rule not in SESSION_RULES), None)
    if unknown is not None:
        raise click.BadParameter(f"'{unknown[:40]}' is none of {', '.join(SESSION_RULES)}.")
    if len(set(rules)) < len(rules):
        raise click.BadParameter("A rule stands twice.")
    return rules


def _checked_name(_context: click.Context, _option: click.Parameter, name: str) -> str:
    if re.fullmatch("[A-Za-z_][A-Za-z0-9_]{0,39}", name) is None:
        raise click.BadParameter("A name has 1 to 40 letters, digits and underscores.")
    return name


tools_option: Final = click.option(
    "--tools",
    type=click.Choice(["all", "search"]),
    default="all",
    show_default=True,
    help="Which tools MCP clients are listed: all, or three tools that search the others.",
)

media_option: Final = click.option(
    "--media",
    type=click.Choice(["inline", "links"]),
    default="inline",
    show_default=True,
    help="How to send images and sounds to MCP clients that don't choose: inline or as links.",
)

handles_option: Final = click.option(
    "--handles/--no-handles",
    default=True,
    show_default=True,
    help="Offer leases by handle, argument and cookie to MCP clients without sessions.",
)

sessions_from_option: Final = click.option(
    "--sessions-from",
    default=",".join(DEFAULT_SESSION_RULES),
    show_default=True,
    metavar="RULE,...",
    callback=_parse_rules,
    help="What says to which session a call belongs, in order; principal can be added.",
)

session_argument_option: Final = click.option(
    "--session-argument",
    default=SESSION_ARGUMENT,
    show_default=True,
    metavar="NAME",
    callback=_checked_name,
    help="The argument of leased tools in which models pass their session.",
)

conversation_keys_option: Final = click.option(
    "--conversation-key",
    "conversation_keys",
    multiple=True,
    default=CONVERSATION_KEYS,
    show_default=True,
    metavar="KEY",
    help="A key of _meta in which hosts send the id of a conversation; repeatable.",
)

drain_timeout_option: Final = click.option(
    "--drain-timeout",
    type=SECONDS,
    default=SHUTDOWN_TIMEOUT,
    show_default=True,
    help="Seconds that requests in flight get after SIGTERM; a second signal skips the wait.",
)


def _checked_origins(
    _context: click.Context, _option: click.Parameter, origins: tuple[str, ...]
) -> tuple[str, ...]:
    for origin in origins:
        if origin_in(origin) is None:
            raise click.BadParameter(
                f"{origin!a} is no origin: write SCHEME://HOST or SCHEME://HOST:PORT, such as"
                " https://app.example.com. There is no pattern for several: name each."
            )
    return origins


def _checked_hosts(
    _context: click.Context, _option: click.Parameter, hosts: tuple[str, ...]
) -> tuple[str, ...]:
    for host in hosts:
        if host_in(host) is None and host_in(f"[{host}]") is None:
            raise click.BadParameter(
                f"{host!a} is no host: write a name or an address, such as mcp.example.com,"
                " without a scheme and a path. There is no pattern for several: name each."
            )
    return hosts


_OPTIONS: Final = {
    "origins": click.option(
        "--allow-origin",
        "front_origins",
        multiple=True,
        metavar="ORIGIN",
        callback=_checked_origins,
        help="An origin of web pages that may send MCP requests; this machine's always may.",
    ),
    "hosts": click.option(
        "--allow-host",
        "front_hosts",
        multiple=True,
        metavar="HOST",
        callback=_checked_hosts,
        help="A host name by which MCP clients reach the front; this machine's always work.",
    ),
    "public_url": click.option(
        "--public-url",
        "front_public_url",
        default="",
        metavar="URL",
        callback=checked_web_url,
        help="The front's URL for MCP clients behind a proxy, such as https://mcp.example.com.",
    ),
    "tools": tools_option,
    "media": media_option,
    "handles": handles_option,
    "sessions_from": sessions_from_option,
    "session_argument": session_argument_option,
    "conversation_keys": conversation_keys_option,
    "sessions_per_client": click.option(
        "--sessions-per-client",
        type=click.IntRange(min=1),
        default=SESSIONS_PER_CLIENT,
        show_default=True,
        help="Sessions with leases of one principal and client; a new one ends the longest idle.",
    ),
    "drain_timeout": drain_timeout_option,
}

front_options = grouped_options("reach", FrontReach, _OPTIONS)

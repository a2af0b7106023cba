"""Options of a front: who may reach it, which tools it lists, how it sends media."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

import click

from leaseway.cli.options.common import SECONDS, grouped_options
from leaseway.wire.bounds import SHUTDOWN_TIMEOUT
from leaseway.wire.channels.endpoint import Endpoint

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
        handles: Whether clients of 2026-07-28 are listed the tools that acquire and release leases.
        drain_timeout: Seconds that requests in flight get when the front ends.
    """

    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    public_url: str = ""
    tools: Literal["all", "search"] = "all"
    media: MediaMode = "inline"
    handles: bool = True
    drain_timeout: float = SHUTDOWN_TIMEOUT

    def hosts_at(self, listen: Endpoint) -> tuple[str, ...]:
        """Return the allowed `Host` names of requests; empty means all."""
        name = urlsplit(self.public_url).hostname
        if name is None or not (self.hosts or listen.is_loopback):
            return self.hosts
        return (*self.hosts, name)  # a proxy may forward its client's header

    def as_arguments(self) -> list[str]:
        """Return these options for a child process."""
        return [
            *(word for origin in self.origins for word in ("--allow-origin", origin)),
            *(word for host in self.hosts for word in ("--allow-host", host)),
            *(("--public-url", self.public_url) if self.public_url else ()),
            *(("--tools", "search") if self.tools == "search" else ()),
            *(("--media", self.media) if self.media != "inline" else ()),
            *(() if self.handles else ("--no-handles",)),
            *(
                ("--drain-timeout", f"{self.drain_timeout:g}")
                if self.drain_timeout != SHUTDOWN_TIMEOUT
                else ()
            ),
        ]


def _checked(_context: click.Context, _option: click.Parameter, url: str) -> str:
    if not url:
        return url
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("https", "http") and bool(parts.hostname)
    except ValueError:
        is_good = False
    if not is_good:
        raise click.BadParameter("The URL must begin with https:// or http:// and name a host.")
    return url


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
    help="List lease_acquire and lease_release to MCP clients of 2026-07-28.",
)

drain_timeout_option: Final = click.option(
    "--drain-timeout",
    type=SECONDS,
    default=SHUTDOWN_TIMEOUT,
    show_default=True,
    help="Seconds that requests in flight get after SIGTERM; a second signal skips the wait.",
)

_OPTIONS: Final = {
    "front_origins": click.option(
        "--allow-origin",
        "front_origins",
        multiple=True,
        metavar="ORIGIN",
        help="An origin of web pages that may send MCP requests; this machine's always may.",
    ),
    "front_hosts": click.option(
        "--allow-host",
        "front_hosts",
        multiple=True,
        metavar="HOST",
        help="A host name by which MCP clients reach the front; this machine's always work.",
    ),
    "front_public_url": click.option(
        "--public-url",
        "front_public_url",
        default="",
        metavar="URL",
        callback=_checked,
        help="The front's URL for MCP clients behind a proxy, such as https://mcp.example.com.",
    ),
    "tools": tools_option,
    "media": media_option,
    "handles": handles_option,
    "drain_timeout": drain_timeout_option,
}

front_options = grouped_options("reach", FrontReach, _OPTIONS)

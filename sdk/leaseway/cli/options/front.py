"""How MCP clients and web pages may reach a front, what it lists, and how images come."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from leaseway.cli.options.common import with_options
from leaseway.wire.channels.endpoint import Endpoint

if TYPE_CHECKING:
    from leaseway.front.calling.media import MediaMode

Command = Callable[..., Any]


@dataclass(frozen=True)
class FrontReach:
    """What a front was told of its clients.

    Attributes:
        origins: Origins of web pages that may ask, beside those of this machine.
        hosts: Names by which clients reach it, beside those of this machine.
        public_url: What clients reach it by where a proxy is between, or empty.
        search: Whether three tools to search all others are listed instead of them.
        media: How clients that do not say want images and sounds.
        handles: Whether clients of 2026-07-28 are listed the tools for handles of leases.
    """

    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    public_url: str = ""
    search: bool = False
    media: MediaMode = "inline"
    handles: bool = True

    def hosts_at(self, listen: Endpoint) -> tuple[str, ...]:
        """Return the names that requests may have as `Host`; none where all may."""
        name = urlsplit(self.public_url).hostname
        if name is None or not (self.hosts or listen.is_loopback):
            return self.hosts
        return (*self.hosts, name)  # a proxy may pass on what its client sent

    def as_arguments(self) -> list[str]:
        """Return the options that give a child process the same."""
        return [
            *(word for origin in self.origins for word in ("--allow-origin", origin)),
            *(word for host in self.hosts for word in ("--allow-host", host)),
            *(("--public-url", self.public_url) if self.public_url else ()),
            *(("--tools", "search") if self.search else ()),
            *(("--media", self.media) if self.media != "inline" else ()),
            *(() if self.handles else ("--no-handles",)),
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
        raise click.BadParameter("begins with https:// or http:// and names a host")
    return url


tools_option: Final = click.option(
    "--tools",
    type=click.Choice(["all", "search"]),
    default="all",
    show_default=True,
    help="What MCP clients are listed: all tools, or three with which a model finds the others.",
)

media_option: Final = click.option(
    "--media",
    type=click.Choice(["inline", "links"]),
    default="inline",
    show_default=True,
    help="How images and sounds reach MCP clients that do not say: in place, or as links to read.",
)

handles_option: Final = click.option(
    "--handles/--no-handles",
    default=True,
    show_default=True,
    help="Whether MCP clients of 2026-07-28 are listed lease_acquire and lease_release.",
)

_OPTIONS: Final = (
    click.option(
        "--allow-origin",
        "front_origins",
        multiple=True,
        metavar="ORIGIN",
        help="An origin of web pages that may ask over MCP, beside those of this machine.",
    ),
    click.option(
        "--allow-host",
        "front_hosts",
        multiple=True,
        metavar="HOST",
        help="A name that MCP clients reach the front by, beside those of this machine.",
    ),
    click.option(
        "--public-url",
        "front_public_url",
        default="",
        metavar="URL",
        callback=_checked,
        help="What MCP clients reach the front by, such as https://mcp.example.com, where a proxy "
        "is between.",
    ),
    tools_option,
    media_option,
    handles_option,
)


def front_options(command: Command) -> Command:
    """Add the options, as one argument `reach`."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        given = FrontReach(
            kwargs.pop("front_origins"),
            kwargs.pop("front_hosts"),
            kwargs.pop("front_public_url"),
            kwargs.pop("tools") == "search",
            kwargs.pop("media"),
            kwargs.pop("handles"),
        )
        return command(reach=given, **kwargs)

    return with_options(wrapper, _OPTIONS)

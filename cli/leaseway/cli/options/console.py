"""Options of the console: where it is served, and its address for people."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

import click

from leaseway.cli.options.common import ENDPOINT
from leaseway.cli.options.groups import arguments_for, grouped_options
from leaseway.wire.channels.endpoint import Endpoint


@dataclass(frozen=True)
class ConsoleOptions:
    """How a control plane serves the console.

    Attributes:
        listen: Where it listens, or None to not serve it.
        url: Its address for people's browsers; empty means its own, on loopback.
    """

    listen: Endpoint | None
    url: str

    def as_arguments(self) -> list[str]:
        """Return the options for a child process, without `--console`."""
        return arguments_for(_OPTIONS, replace(self, listen=None))


def _checked_url(_context: click.Context, _parameter: click.Parameter, url: str) -> str:
    if not url:
        return ""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_plain = not parts.query and not parts.fragment and "@" not in parts.netloc
    except ValueError:
        is_url = is_plain = False
    if not is_url or not is_plain:
        raise click.BadParameter("write an address such as https://leaseway.example.com.")
    return url


_OPTIONS: Final = {
    "listen": click.option(
        "--console",
        type=ENDPOINT,
        help="Serve the console for operators at http://HOST:PORT/; port 0 takes any free port.",
    ),
    "url": click.option(
        "--console-url",
        metavar="URL",
        default="",
        callback=_checked_url,
        help="The console's address for people's browsers, where they log in to servers; by "
        "default its own, on loopback.",
    ),
}

console_options = grouped_options("console", ConsoleOptions, _OPTIONS)

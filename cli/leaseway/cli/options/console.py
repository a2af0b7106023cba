"""Options of the console: where it is served, and its address for people."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import click

from leaseway.cli.options.common import ENDPOINT, checked_web_url
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
        callback=checked_web_url,
        help="The console's address for people's browsers, where they log in to servers; by "
        "default its own, on loopback.",
    ),
}

console_options = grouped_options("console", ConsoleOptions, _OPTIONS)

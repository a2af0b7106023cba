"""`--config`, given once or several times, and what its words name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leaseway.wire.names import nearest

if TYPE_CHECKING:
    from leaseway.control_plane.config.layers.sources import Source

CONFIG_WORDS: Final = (
    "PATH, system=PATH, domain=TENANT:PATH, domain=FOLDER (a file for each tenant), session=PATH"
    " or, for a running system, kubernetes=NAMESPACE"
)

config_option = click.option(
    "--config",
    "config",
    multiple=True,
    metavar="[LAYER=]PATH",
    help=f"{CONFIG_WORDS}; repeatable.  [default: .minds/mcp.yaml]",
)
"""`--config`, repeatable, as the argument `config`."""

prefix_option = click.option(
    "--prefix",
    type=click.Choice(["server", "none"]),
    default="server",
    show_default=True,
    help="What tools get before their names where a file cannot say it (mcpServers, VS Code): the"
    " server's id and _, or nothing.",
)
"""`--prefix`, as the argument `prefix`."""

_LAYERS: Final = ("system", "domain", "session")


class ConfiguredCommand(click.Command):
    """A command with `--config`, which says so to who names a file without it."""

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and refuse what is no option."""
        rest = super().parse_args(ctx, args)
        if rest:
            ctx.fail(
                f"There is no argument '{rest[0]}' to give. A configuration is named by --config: "
                f"{ctx.command_path} --config {rest[0]}"
            )
        return rest


def sources_of(words: Sequence[str], prefix: str = "server") -> tuple[Source, ...]:
    """Return the files that words name, the lowest layer first; `prefix` is that option's word.

    Raises:
        click.UsageError: They do not fit together.
    """
    from leaseway.control_plane.config.layers.sources import BadSources, parse_sources

    try:
        return parse_sources(words, bare=prefix == "none")
    except BadSources as error:
        raise click.UsageError(str(error)) from None


def existing_sources(words: Sequence[str], prefix: str = "server") -> tuple[Source, ...]:
    """Return the files that words name, all of which are there.

    Raises:
        click.UsageError: They do not fit together, or one is missing.
    """
    sources = sources_of(words, prefix)
    for source in sources:
        if source.namespace:
            raise click.UsageError(
                f"--config kubernetes={source.namespace} is followed by a running control plane"
                f" only. See what it says of them: kubectl -n {source.namespace} get mcpservers"
            )
        there = source.path.is_dir() if source.folder else source.path.is_file()
        if not there and not source.optional:
            raise click.UsageError(_missing(source.path))
    return sources


def startable_sources(words: Sequence[str]) -> tuple[Source, ...]:
    """Return the files that words name, which may come later; what can never be one is refused.

    Raises:
        click.UsageError: They do not fit together, or one is a folder or a misspelt layer.
    """
    sources = sources_of(words)
    for source in sources:
        if (
            not source.namespace
            and not source.folder
            and (source.path.is_dir() or _misspelt(source.path))
        ):
            raise click.UsageError(_missing(source.path))
    return sources


def _misspelt(path: Path) -> str:
    """Return the layer that was meant by the head of a path, or an empty text."""
    layer, equals, _ = str(path).partition("=")
    near = nearest(layer, _LAYERS, limit=1) if equals else []
    return near[0] if near else ""


def _missing(path: Path) -> str:
    from leaseway.control_plane.config.layers.sources import DEFAULT_CONFIG

    if path.is_dir():
        return f"{path} is a folder; domain={path} reads a file for each tenant from it."
    near, rest = _misspelt(path), str(path).partition("=")[2]
    hint = f" Did you mean '{near}={rest}'?" if near else ""
    if path == DEFAULT_CONFIG:
        hint = " Write one (see the README's quick start), or name another."
    return f"There is no file {path}.{hint}"


def described(sources: Sequence[Source]) -> str:
    """Return the files as a sentence's subject."""
    paths: list[Path] = [source.path for source in sources if not source.optional]
    return ", ".join(map(str, paths))

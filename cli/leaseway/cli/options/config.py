"""`--config` and `--prefix`, and the configuration sources that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from leaseway.cli.options.groups import arguments_for, grouped_options
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

prefix_option = click.option(
    "--prefix",
    type=click.Choice(["server", "none"]),
    default="server",
    show_default=True,
    help="The prefix of tool names if the file format has no key for it (mcpServers, VS Code): the"
    " server's id and _, or none.",
)

_OPTIONS: Final = {"words": config_option, "prefix": prefix_option}


@dataclass(frozen=True)
class ConfigOptions:
    """The configuration of a control plane.

    Attributes:
        words: The values of `--config`; empty means the default file.
        prefix: The value of `--prefix`.
    """

    words: tuple[str, ...]
    prefix: str

    def as_arguments(self) -> list[str]:
        """Return these options for a child process."""
        return arguments_for(_OPTIONS, self)


config_options = grouped_options("config", ConfigOptions, _OPTIONS)

_LAYERS: Final = ("system", "domain", "session")


class ConfiguredCommand(click.Command):
    """A command with `--config`, which it suggests for a file name without the option."""

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options, and reject other words."""
        rest = super().parse_args(ctx, args)
        if rest:
            ctx.fail(
                f"Unexpected argument '{rest[0]}'. Name a configuration with --config: "
                f"{ctx.command_path} --config {rest[0]}"
            )
        return rest


def sources_of(words: Sequence[str], prefix: str = "server") -> tuple[Source, ...]:
    """Return the sources that `--config` words name, the lowest layer first.

    Raises:
        click.UsageError: The words conflict.
    """
    from leaseway.control_plane.config.layers.sources import BadSources, parse_sources

    try:
        return parse_sources(words, bare=prefix == "none")
    except BadSources as error:
        raise click.UsageError(str(error)) from None


def existing_sources(words: Sequence[str], prefix: str = "server") -> tuple[Source, ...]:
    """Return the sources that `--config` words name, all of which must exist.

    Raises:
        click.UsageError: The words conflict, or a source is missing.
    """
    sources = sources_of(words, prefix)
    for source in sources:
        if source.namespace:
            raise click.UsageError(
                f"--config kubernetes={source.namespace} works only for a running control plane. To"
                f" see its state, run: kubectl -n {source.namespace} get mcpservers"
            )
        exists = source.path.is_dir() if source.folder else source.path.is_file()
        if not exists and not source.optional:
            raise click.UsageError(_missing(source.path))
    return sources


def startable_sources(words: Sequence[str]) -> tuple[Source, ...]:
    """Return the sources that `--config` words name; their files may be created later.

    Raises:
        click.UsageError: The words conflict, or one is a folder or a misspelt layer.
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
    """Return the layer that the head of a path probably means, or an empty text."""
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
        context = click.get_current_context(silent=True)
        options = [] if context is None else [param.opts for param in context.command.params]
        with_option = " with --config" if ["--config"] in options else ""
        hint = f" Write one (see the README's quick start), or name another{with_option}."
    return f"There is no file {path}.{hint}"


def describe_sources(sources: Sequence[Source]) -> str:
    """Return the sources' paths as the subject of a sentence."""
    paths: list[Path] = [source.path for source in sources if not source.optional]
    return ", ".join(map(str, paths))

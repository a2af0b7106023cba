"""`--config`, given once or several times, and what its words name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from leaseway.control_plane.config.sources import Source

__all__ = ["CONFIG_WORDS", "config_option", "described", "existing_sources", "sources_of"]

CONFIG_WORDS: Final = (
    "PATH, system=PATH, domain=TENANT:PATH, domain=FOLDER (a file for each tenant) or session=PATH"
)

config_option = click.option(
    "--config",
    "config",
    multiple=True,
    metavar="[LAYER=]PATH",
    help=f"{CONFIG_WORDS}; repeatable.  [default: .minds/mcp.yaml]",
)
"""`--config`, repeatable, as the argument `config`."""


def sources_of(words: Sequence[str]) -> tuple[Source, ...]:
    """Return the files that words name, the lowest layer first.

    Raises:
        click.UsageError: They do not fit together.

    """
    from leaseway.control_plane.config.sources import BadSources, parse_sources

    try:
        return parse_sources(words)
    except BadSources as error:
        raise click.UsageError(str(error)) from None


def existing_sources(words: Sequence[str]) -> tuple[Source, ...]:
    """Return the files that words name, all of which are there.

    Raises:
        click.UsageError: They do not fit together, or one is missing.

    """
    sources = sources_of(words)
    for source in sources:
        there = source.path.is_dir() if source.folder else source.path.is_file()
        if not there and not source.optional:
            raise click.UsageError(f"There is no file {source.path}.")
    return sources


def described(sources: Sequence[Source]) -> str:
    """Return the files as a sentence's subject."""
    paths: list[Path] = [source.path for source in sources if not source.optional]
    return ", ".join(map(str, paths))

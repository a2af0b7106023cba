"""Where a worker keeps images and sounds of results, for how long, and where pages find them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from leaseway.cli.options.common import ENDPOINT, SECONDS, with_options
from leaseway.spec.sizes import parse_size
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import Endpoint

Command = Callable[..., Any]


class _SizeType(click.ParamType[int]):
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        size = parse_size(str(value))
        if not size:
            self.fail(f"'{value}' is no size such as 512MiB or 2GB, or a number of bytes")
        return size


@dataclass(frozen=True)
class ArtifactOptions:
    """What a worker was told of artifacts.

    Attributes:
        folder: Where they are kept; None means the system's folder for temporary files.
        age: Seconds that one is kept.
        space: Bytes of all of them together.
        http: Where pages ask for them, or None for nowhere.
    """

    folder: Path | None
    age: float
    space: int
    http: Endpoint | None

    def as_arguments(self) -> list[str]:
        """Return the options that give a child process the same, less where pages ask."""
        folder = ("--artifacts", os.fspath(self.folder)) if self.folder is not None else ()
        return [*folder, "--artifact-age", f"{self.age:g}", "--artifact-space", str(self.space)]


_OPTIONS: Final = (
    click.option(
        "--artifacts",
        "artifact_folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="A folder for images and sounds of results; else the system's temporary one.",
    ),
    click.option(
        "--artifact-age",
        type=SECONDS,
        default=bounds.ARTIFACT_AGE,
        show_default=f"{bounds.ARTIFACT_AGE:g}",
        help="How long each of them is kept.",
    ),
    click.option(
        "--artifact-space",
        type=_SizeType(),
        default=bounds.ARTIFACT_SPACE,
        help="What a worker keeps of them in all; the oldest go first.  [default: 2GiB]",
    ),
    click.option(
        "--artifacts-http",
        type=ENDPOINT,
        help="Serve them to pages at http://HOST:PORT/artifacts/; port 0 takes any free port.",
    ),
)


def artifact_options(command: Command) -> Command:
    """Add the four options, as one argument `artifacts`."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        given = ArtifactOptions(
            kwargs.pop("artifact_folder"),
            kwargs.pop("artifact_age"),
            kwargs.pop("artifact_space"),
            kwargs.pop("artifacts_http"),
        )
        return command(artifacts=given, **kwargs)

    return with_options(wrapper, _OPTIONS)

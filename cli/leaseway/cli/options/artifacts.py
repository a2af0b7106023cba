"""Options for a worker's artifacts: the images and sounds that it keeps of results."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click

from leaseway.cli.options.common import ENDPOINT, SECONDS
from leaseway.cli.options.groups import arguments_for, grouped_options
from leaseway.wire import bounds
from leaseway.wire.channels.endpoint import Endpoint
from leaseway.wire.text.sizes import parse_size


class SizeType(click.ParamType[int]):
    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        size = parse_size(str(value))
        if not size:
            self.fail(f"'{value}' is not a size such as 512MiB or 2GB, or a number of bytes")
        return size


@dataclass(frozen=True)
class ArtifactOptions:
    """How a worker stores and serves artifacts.

    Attributes:
        folder: Where artifacts are stored; None means the system's temporary folder.
        age: Seconds to keep each artifact.
        space: Limit of all artifacts together, in bytes.
        http: Where web pages fetch artifacts, or None to not serve them.
    """

    folder: Path | None
    age: float
    space: int
    http: Endpoint | None

    def as_arguments(self) -> list[str]:
        """Return the options for a child process, without `--artifacts-http`."""
        return arguments_for(_OPTIONS, replace(self, http=None))


_OPTIONS: Final = {
    "folder": click.option(
        "--artifacts",
        "artifact_folder",
        type=click.Path(file_okay=False, path_type=Path),
        help="A folder for artifacts (images and sounds of results); else the temporary folder.",
    ),
    "age": click.option(
        "--artifact-age",
        type=SECONDS,
        default=bounds.ARTIFACT_AGE,
        help=f"How long to keep each artifact.  [default: {bounds.ARTIFACT_AGE:g}]",
    ),
    "space": click.option(
        "--artifact-space",
        type=SizeType(),
        default=bounds.ARTIFACT_SPACE,
        help="Size limit of a worker's artifacts; the oldest are deleted first.  [default: 2GiB]",
    ),
    "http": click.option(
        "--artifacts-http",
        type=ENDPOINT,
        help="Serve artifacts at http://HOST:PORT/artifacts/; port 0 takes any free port.",
    ),
}

artifact_options = grouped_options("artifacts", ArtifactOptions, _OPTIONS)

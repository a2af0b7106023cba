"""`--data`: where a control plane keeps what outlives it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from leaseway.cli.options.common import grouped_options


@dataclass(frozen=True)
class StoreOptions:
    """Where a control plane keeps approvals.

    Attributes:
        data: The folder of the file, or None for the process's memory.
    """

    data: Path | None

    def as_arguments(self) -> list[str]:
        """Return the options for a child process."""
        return ["--data", os.fspath(self.data)] if self.data is not None else []

    @property
    def own_paths(self) -> list[str]:
        """Options for workers: what no sandboxed server may see."""
        return ["--own-path", os.fspath(self.data)] if self.data is not None else []


_OPTIONS: Final = {
    "data": click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="LEASEWAY_DATA",
        show_envvar=True,
        help="Keep approvals in a file in this folder, so that they outlive the control plane.",
    ),
}

store_options = grouped_options("store", StoreOptions, _OPTIONS)

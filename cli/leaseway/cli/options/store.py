"""`--data` and `--store`: where a control plane keeps what outlives it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.options.groups import arguments_for, grouped_options, variables_of

if TYPE_CHECKING:
    from leaseway.control_plane.store.references import DsnReference


@dataclass(frozen=True)
class StoreOptions:
    """Where a control plane keeps approvals; with neither, in its memory.

    Attributes:
        data: The folder of a file, or None.
        dsn: Where the connection string of a PostgreSQL database is, or None.
    """

    data: Path | None
    dsn: DsnReference | None

    def __post_init__(self) -> None:
        if self.data is not None and self.dsn is not None:
            raise click.UsageError("--data and --store exclude each other: choose one store.")

    def as_arguments(self) -> list[str]:
        """Return the options for a child process."""
        return arguments_for(_OPTIONS, self)

    @property
    def variables(self) -> frozenset[str]:
        """The variables that only the control plane may get."""
        is_variable = self.dsn is not None and self.dsn.kind == "env"
        return frozenset({self.dsn.name} if self.dsn is not None and is_variable else ())

    @property
    def own_paths(self) -> list[str]:
        """Options for workers: what no sandboxed server may see."""
        secret = self.dsn.name if self.dsn is not None and self.dsn.kind == "file" else None
        paths = [os.fspath(path) for path in (self.data, secret) if path is not None]
        return [word for path in paths for word in ("--own-path", path)]


class _ReferenceType(click.ParamType["DsnReference"]):
    name = "REFERENCE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> DsnReference:
        from leaseway.control_plane.store.references import parse_reference

        try:
            reference = parse_reference(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if reference.kind == "env" and not os.environ.get(reference.name):
            self.fail(f"The variable {reference.name} is not set.", param, ctx)
        return reference


_OPTIONS: Final = {
    "data": click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="LEASEWAY_DATA",
        show_envvar=True,
        help="Keep approvals and anchors of the audit in a file in this folder.",
    ),
    "dsn": click.option(
        "--store",
        "dsn",
        type=_ReferenceType(),
        envvar="LEASEWAY_STORE",
        show_envvar=True,
        help="Keep them in PostgreSQL: env:NAME or file:PATH of the connection string.",
    ),
}

store_options = grouped_options("store", StoreOptions, _OPTIONS)
STORE_VARIABLES: Final = variables_of(_OPTIONS)

"""Options for a worker's audit: its folder, and the sink that it is shipped to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from leaseway.cli.options.artifacts import SizeType
from leaseway.cli.options.groups import arguments_for, grouped_options
from leaseway.wire import bounds

AUDIT_VARIABLE: Final = "LEASEWAY_AUDIT"
POLICIES: Final = ("block", "spill", "drop")


@dataclass(frozen=True)
class AuditOptions:
    """How a worker records calls.

    Attributes:
        folder: The folder of its files, or None if nothing is recorded.
        sink: The address of the sink, or None.
        policy: What happens while the sink does not acknowledge records.
        space: Bytes of files that may wait for the sink.
    """

    folder: Path | None
    sink: str | None
    policy: str
    space: int

    def __post_init__(self) -> None:
        if self.sink is not None and self.folder is None:
            raise click.UsageError(
                "--audit-sink needs --audit FOLDER: files there hold what is not shipped yet."
            )

    def as_arguments(self) -> list[str]:
        """Return the options for a child process."""
        return arguments_for(_OPTIONS, self)


class _SinkType(click.ParamType[str]):
    name = "SINK"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from leaseway.data_plane.audit.sinks.addresses import check_address

        try:
            return check_address(str(value))
        except ValueError as error:
            self.fail(str(error))


_OPTIONS: Final = {
    "folder": click.option(
        "--audit",
        "audit_folder",
        type=click.Path(file_okay=False, path_type=Path),
        envvar=AUDIT_VARIABLE,
        show_envvar=True,
        help="Record every call in files in this folder; see `leaseway audit`.",
    ),
    "sink": click.option(
        "--audit-sink",
        type=_SinkType(),
        envvar="LEASEWAY_AUDIT_SINK",
        show_envvar=True,
        help="Ship the files to s3://BUCKET/FOLDER or nats://HOST:PORT/STREAM/SUBJECT; credentials "
        "are in LEASEWAY_AUDIT_AWS_… and LEASEWAY_AUDIT_NATS_….",
    ),
    "policy": click.option(
        "--audit-policy",
        type=click.Choice(POLICIES),
        default="spill",
        envvar="LEASEWAY_AUDIT_POLICY",
        show_default=True,
        help="While the sink is down: calls wait (block), files grow (spill), or also lose records"
        " beyond --audit-space (drop).",
    ),
    "space": click.option(
        "--audit-space",
        type=SizeType(),
        default=bounds.AUDIT_SPACE,
        envvar="LEASEWAY_AUDIT_SPACE",
        help="Limit of a worker's files that wait for the sink.  [default: 1GiB]",
    ),
}

audit_options = grouped_options("audit", AuditOptions, _OPTIONS)

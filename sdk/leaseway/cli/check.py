"""`leaseway check`: every problem of a configuration file, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from leaseway.cli.failure import FAILED
from leaseway.cli.options import json_option
from leaseway.cli.output import plain, print_json

__all__ = ["check"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@json_option
def check(config: Path, as_json: bool) -> int:
    """Check the configuration file CONFIG.

    Errors keep a server from running; warnings do not.
    """
    if not config.is_file():
        raise click.UsageError(f"There is no file {config}.")
    from leaseway.control_plane.config.check import check_file

    issues = check_file(config)
    if as_json:
        print_json([plain(issue) for issue in issues])
    else:
        for issue in issues:
            click.echo(_line(issue))
    errors = sum(issue.severity == "error" for issue in issues)
    if not as_json:
        click.echo(_summary(config, errors, len(issues) - errors), err=True)
    return FAILED if errors else 0


def _line(issue: Any) -> str:
    place = ":".join(str(part) for part in (issue.file, issue.line, issue.column) if part)
    return f"{place}: {issue.severity}: {issue.message} [{issue.reason}]"


def _summary(config: Path, errors: int, warnings: int) -> str:
    if not errors and not warnings:
        return f"{config} is good."
    return f"{config}: {_count(errors, 'error')}, {_count(warnings, 'warning')}."


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"

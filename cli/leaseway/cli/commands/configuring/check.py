"""`leaseway check`: report every mistake of a configuration."""

from __future__ import annotations

from typing import Any

import click

from leaseway.cli.errors import FAILED
from leaseway.cli.options.common import examples, json_option
from leaseway.cli.options.config import describe_sources, existing_sources
from leaseway.cli.output.tables import plain, print_json, say


@click.command(
    epilog=examples(
        "leaseway check .minds/mcp.yaml",
        "leaseway check system=base.yaml domain=acme:acme.yaml",
        "leaseway check --schema > mcp.schema.json",
    )
)
@click.argument("config", nargs=-1, metavar="[[LAYER=]PATH]...")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the native format instead.")
@json_option
def check(config: tuple[str, ...], schema: bool, as_json: bool) -> int:
    """Report mistakes in a configuration, with file and line.

    Servers with an error do not run; warnings are harmless. The exit status is 1 if there are
    errors. PATH is a file in any format that Leaseway reads (default .minds/mcp.yaml). Several
    paths are layers, as for --config: system=PATH, domain=TENANT:PATH, session=PATH.
    """
    if schema and config:
        raise click.UsageError("--schema describes the format, not a file: remove PATH.")
    if schema:
        from leaseway.control_plane.config.schema.keys import native_schema

        print_json(native_schema())
        return 0
    sources = existing_sources(config)
    from leaseway.control_plane.config.check import check_sources

    issues = check_sources(sources)
    if as_json:
        print_json([plain(issue) for issue in issues])
    else:
        print_issues(issues)
    errors = sum(issue.severity == "error" for issue in issues)
    if not as_json:
        say(_summary(describe_sources(sources), errors, len(issues) - errors), err=True)
    return FAILED if errors else 0


def print_issues(issues: Any, *, err: bool = False) -> None:
    """Print issues, one per line, each with its place and reason."""
    for issue in issues:
        place = ":".join(str(part) for part in (issue.file, issue.line, issue.column) if part)
        say(f"{place}: {issue.severity}: {issue.message} [{issue.reason}]", err=err)


def _summary(config: str, errors: int, warnings: int) -> str:
    if not errors and not warnings:
        return f"{config}: no mistakes."
    return f"{config}: {_count(errors, 'error')}, {_count(warnings, 'warning')}."


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"

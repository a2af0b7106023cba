"""`leaseway audit`: read the audit log, and verify that it was not changed."""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.audit import AUDIT_VARIABLE
from leaseway.cli.options.common import (
    ConnectionOptions,
    client_options,
    examples,
    is_address_given,
    json_option,
)
from leaseway.cli.options.connection import with_client
from leaseway.cli.options.vault import vault_option
from leaseway.cli.output.tables import json_line, one_line, print_json, print_table, say

if TYPE_CHECKING:
    from leaseway.data_plane.audit.anchors import Anchors
    from leaseway.data_plane.audit.chain import RunReport
    from leaseway.sdk import AsyncClient
    from leaseway.sdk.operators.observe import AnchorReport
    from leaseway.vault.key import VaultPlace

_POLL: Final = 0.25

_folder = click.argument(
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar=AUDIT_VARIABLE,
)


@click.group()
def audit() -> None:
    """Read and verify the audit log of calls.

    Workers write it if they are started with --audit FOLDER.
    """


@audit.command(
    epilog=examples(
        "leaseway audit verify /var/log/leaseway/audit",
        "leaseway audit verify s3://bucket/audit --address control-plane:7600",
    )
)
@click.argument("place", metavar="FOLDER|SINK", envvar=AUDIT_VARIABLE)
@click.option(
    "--anchors/--no-anchors",
    default=None,
    help="Whether to compare the ends of the runs with what the control plane knows of them; "
    "by default if its address is given. Needs an operator's credential.",
)
@json_option
@vault_option
@client_options
def verify(
    place: str,
    anchors: bool | None,
    as_json: bool,
    vault: VaultPlace,
    connection: ConnectionOptions,
) -> int:
    """Verify that no record was changed or removed.

    SINK is where workers ship the files to, such as s3://BUCKET/FOLDER; the credentials come from
    LEASEWAY_AUDIT_AWS_ACCESS_KEY_ID and so on, the file that LEASEWAY_AUDIT_NATS_PASSWORD_FILE
    names, or the secret of the vault that LEASEWAY_AUDIT_NATS_PASSWORD_SECRET names. The exit
    status is 1 if a record was changed or removed. That the newest records of a run are missing, or
    a whole run, shows only in comparison with the control plane.
    """
    if anchors is None:
        anchors = is_address_given()
    # The anchors first: what they name was in the sink before.
    told = with_client(connection, _fetch_anchors) if anchors else None
    known = _known(told)
    is_sink = "://" in place
    reports = _of_sink(place, known, vault) if is_sink else _of_folder(Path(place), known)
    _note_missing_anchors(told)
    if as_json:
        print_json(
            [
                {
                    "run": run,
                    "records": report.records,
                    "faults": report.faults,
                    "remarks": report.remarks,
                }
                for run, report in reports.items()
            ]
        )
    else:
        for run, report in reports.items():
            state = "NOT GOOD" if report.faults else "good"
            say(f"{run}: {report.records} records, {state}")
            for fault in report.faults:
                say(f"  {one_line(fault)}")
            for remark in report.remarks:
                say(f"  note: {one_line(remark)}")
    return FAILED if any(report.faults for report in reports.values()) else 0


async def _fetch_anchors(client: AsyncClient) -> AnchorReport:
    from leaseway.sdk.operators.observe import fetch_audit_anchors

    return await fetch_audit_anchors(client)


def _known(report: AnchorReport | None) -> Anchors | None:
    from leaseway.data_plane.audit.anchors import Anchors

    return Anchors.of(report.anchors, report.time) if report is not None else None


def _note(text: str) -> None:
    say(f"note: {one_line(text)}", err=True)


def _note_missing_anchors(report: AnchorReport | None) -> None:
    """Say what the comparison with the control plane does not cover."""
    if report is None:
        _note(
            "The ends of the runs are not compared with the control plane: records that were cut "
            "off there do not show. Give its address: --address HOST:PORT."
        )
        return
    if report.silent_workers:
        _note(
            f"These workers tell the control plane nothing of their audit: "
            f"{', '.join(report.silent_workers)}. They record none, or are older."
        )
    if report.forgotten:
        _note(f"The control plane had too many runs, and has forgotten {report.forgotten}.")
    if report.unreadable_runs:
        _note(
            f"The control plane's store has records of these runs that it does not understand: "
            f"{', '.join(report.unreadable_runs)}. It may know less of them than it was told."
        )


def _of_folder(folder: Path, anchors: Anchors | None) -> dict[str, RunReport]:
    from leaseway.data_plane.audit.chain import verify_run

    if not folder.is_dir():
        raise click.UsageError(f"'{folder}' is no folder, and no sink such as s3://BUCKET/FOLDER.")
    reports = {}
    for run, files in _runs(folder).items():
        report = verify_run(_opened(files), anchors.head_of(run) if anchors is not None else None)
        if anchors is not None:
            anchors.compare(run, report)
        reports[run] = report
    return reports


async def _verify(address: str, anchors: Anchors | None, place: VaultPlace) -> dict[str, RunReport]:
    from leaseway.data_plane.audit.sinks.addresses import open_sink
    from leaseway.data_plane.audit.verifying import verify_sink
    from leaseway.data_plane.references.vault import WorkerVault, sink_settings

    sink = open_sink(address, sink_settings(os.environ, WorkerVault(place)))
    try:
        return await verify_sink(sink, address, anchors)
    finally:
        await sink.aclose()


def _of_sink(address: str, anchors: Anchors | None, vault: VaultPlace) -> dict[str, RunReport]:
    from leaseway.data_plane.audit.sinks.addresses import check_address
    from leaseway.data_plane.audit.sinks.port import SinkError

    try:
        address = check_address(address)
        reports = asyncio.run(_verify(address, anchors, vault))
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except SinkError as error:
        raise CliFailure(str(error), FAILED) from None
    if not reports:
        raise CliFailure(
            f"{address} contains no audit log. Start workers with: --audit-sink {address}", FAILED
        )
    return reports


@audit.command(
    epilog=examples(
        "leaseway audit query AUDIT --tenant acme --since 2h",
        "leaseway audit query AUDIT --tool pay --outcome PERMISSION_DENIED --json",
    )
)
@_folder
@click.option("--tenant", help="Only calls of this tenant.")
@click.option("--agent", help="Only calls of this agent.")
@click.option("--session", help="Only calls in this session.")
@click.option("--server", help="Only calls of this server.")
@click.option("--tool", help="Only calls of this tool.")
@click.option(
    "--outcome", help="ok, tool_error, begun (no end recorded), or the reason of an error."
)
@click.option("--risk", help="Only calls of tools with this risk.")
@click.option("--trace", help="The id of a trace.")
@click.option(
    "--since",
    metavar="WHEN",
    help="A time (2026-11-22T20:00:00Z), or a duration such as 30m, 2h, 7d.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=1_000, show_default=True, help="How many calls."
)
@json_option
def query(folder: Path, since: str | None, limit: int, as_json: bool, **wanted: str | None) -> None:
    """List the calls that match all options, newest last."""
    matches = _filter({name: value for name, value in wanted.items() if value is not None}, since)
    runs = (chain.from_iterable(map(_records, files)) for files in _runs(folder).values())
    calls = chain.from_iterable(map(calls_of, runs))
    _show(newest(limit, filter(matches, calls)), as_json)


@audit.command(epilog=examples("leaseway audit tail AUDIT --follow"))
@_folder
@click.option(
    "--lines", "-n", type=click.IntRange(0), default=10, show_default=True, help="How many records."
)
@click.option("--follow", "-f", is_flag=True, help="Keep printing new records until Ctrl-C.")
def tail(folder: Path, lines: int, follow: bool) -> None:
    """Print the newest records, one JSON object per line."""
    seen: dict[Path, int] = {}
    records = (
        record
        for files in _runs(folder).values()
        for path in files
        for record in _records(path, seen)
    )
    for record in newest(lines, records):
        say(json_line(record))
    while follow:
        time.sleep(_POLL)
        for record in new_records(folder, seen):
            say(json_line(record))


def newest(number: int, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest of many records, of which no more are kept; the last is the newest."""
    ordered = ((str(record.get("time")), at, record) for at, record in enumerate(records))
    found = heapq.nlargest(max(1, number), ordered)  # of 0 it would read nothing
    return [record for *_, record in reversed(found[:number])]


def new_records(folder: Path, seen: dict[Path, int]) -> Iterator[dict[str, Any]]:
    """Yield the records of all files that were not seen yet, of none while there is no file.

    Args:
        seen: The bytes of each file that were seen; is brought up to date.
    """
    from leaseway.data_plane.audit.log import runs_in

    for files in runs_in(folder).values():
        for path in files:
            yield from _records(path, seen)


def _runs(folder: Path) -> dict[str, list[Path]]:
    from leaseway.data_plane.audit.log import runs_in

    try:
        runs = runs_in(folder)
    except OSError as error:
        raise CliFailure(f"Can't read {folder}: {error.strerror}.", FAILED) from None
    if not runs:
        raise CliFailure(
            f"{folder} contains no audit log. Start workers with: --audit {folder}", FAILED
        )
    return runs


def _opened(files: list[Path]) -> Iterator[tuple[str, Iterator[bytes]]]:
    for path in files:
        with path.open("rb") as file:
            yield path.name, iter(file)


def _records(path: Path, seen: dict[Path, int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the records of a file from what was seen on; none if it was shipped meanwhile."""
    seen = {} if seen is None else seen
    at = seen.get(path, 0)
    with suppress(FileNotFoundError):
        if path.stat().st_size <= at:
            return
        with path.open("rb") as file:
            file.seek(at)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # it is still being written
                at = seen[path] = at + len(line)
                record = _parsed(line)
                if record is not None:
                    yield record


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def calls_of(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the calls of a run, and what else it has recorded of single decisions.

    Only calls without an end are kept: the files of months may be larger than memory.
    """
    begun: dict[object, dict[str, Any]] = {}
    for record in records:
        match record.get("event"):
            case "approval" | "operator" | "refused":
                yield record
            case "begin":
                begun[record.get("call")] = record
            case "call":
                begin = begun.pop(record.get("call"), {})
                yield {**begin, **record, "time": begin.get("time", record.get("time"))}
    for begin in begun.values():
        yield {"outcome": "begun", **begin}


def earliest(since: str) -> str:
    """Return the time since when records are wanted, in the format of records."""
    from leaseway.data_plane.audit.log import timestamp

    unit = {"s": 1, "m": 60, "h": 3600, "d": 86_400}.get(since[-1:])
    try:
        if unit is not None and since[:-1].isdecimal():
            return timestamp(max(0.0, time.time() - int(since[:-1]) * unit))
        given = datetime.fromisoformat(since)
        return timestamp((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise click.UsageError(
            f"--since {since} is not a time; use 2h or 2026-11-22T20:00:00Z."
        ) from None


def _filter(wanted: dict[str, str], since: str | None) -> Callable[[dict[str, Any]], bool]:
    begin = "" if since is None else earliest(since)

    def matches(record: dict[str, Any]) -> bool:
        if str(record.get("time", "")) < begin:
            return False
        return all(record.get(name) == value for name, value in wanted.items())

    return matches


def _show(records: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(records)
        return
    rows = [
        (
            record.get("time", "-"),
            record.get("tenant", "-"),
            record.get("agent") or "-",
            record.get("session") or "-",
            _what(record),
            json.dumps(record.get("arguments", {}), ensure_ascii=False)[:80],
            record.get("outcome", "-"),
            f"{record['duration_ms']} ms" if "duration_ms" in record else "-",
        )
        for record in records
    ]
    names = ("TIME", "TENANT", "AGENT", "SESSION", "TOOL", "ARGUMENTS", "OUTCOME", "TOOK")
    print_table(names, rows, "No recorded call matches.")


def _what(record: dict[str, Any]) -> str:
    tool = f"{record.get('server')}:{record.get('tool')}"
    match record.get("event"), record.get("action"):
        case "operator", "try":
            return f"try {tool}, by {record.get('by')}"
        case "operator", action:
            return f"{action} {record.get('lease') or record.get('target')}, by {record.get('by')}"
        case "refused", _:
            sender = (
                f"{record.get('by', 'unknown caller')} at {record.get('from', 'many addresses')}"
            )
            return f"{record.get('rpc', 'unknown RPCs')}, {record.get('times')} x, by {sender}"
        case _:
            return tool

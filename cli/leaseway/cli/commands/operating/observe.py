"""`leaseway status`, `events` and `trace`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import click

from leaseway.cli.commands.server_checks import servers_in_view
from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.common import ConnectionOptions, client_options, examples, json_option
from leaseway.cli.options.connection import with_client
from leaseway.cli.output.tables import json_line, one_line, print_json, print_table, say
from leaseway.wire.messages.events import KINDS
from leaseway.wire.messages.states import CallSelection, ServerState

if TYPE_CHECKING:
    from leaseway.sdk import (
        AsyncClient,
        LeaseInfo,
        ProblemInfo,
        ServerInfo,
        WorkerInfo,
    )
    from leaseway.sdk import Status as SystemStatus
    from leaseway.sdk.operators.observe import CallInfo, EventInfo

_BAR_WIDTH: Final = 40
_MAX_ROWS: Final = 10
_MAX_DETAILS: Final = 20


@dataclass(frozen=True)
class Overview:
    """The content of `status`."""

    status: SystemStatus
    servers: Sequence[ServerInfo]
    workers: Sequence[WorkerInfo]
    leases: Sequence[LeaseInfo]
    problems: Sequence[ProblemInfo]
    last_reload: EventInfo | None


@click.command(epilog=examples("leaseway status", "leaseway status --json | jq .status.ready"))
@json_option
@client_options
def status(as_json: bool, connection: ConnectionOptions) -> None:
    """Show the state of the system on one screen.

    It shows whether the system is ready, servers that are not up and why, workers, leases, problems
    and the last reload. The exit status is 1 if a server or worker is not up, or an error is open.
    """
    overview = with_client(connection, _overview)
    if as_json:
        print_json(overview)
    else:
        for line in _status_lines(overview):
            say(line)
    if not _is_healthy(overview):
        raise SystemExit(FAILED)


async def _overview(client: AsyncClient) -> Overview:
    from leaseway.sdk.operators.observe import fetch_events

    reloads = await fetch_events(client, kinds=("reload",), last=1)
    return Overview(
        status=await client.status(),
        servers=await servers_in_view(client),
        workers=await client.workers(),
        leases=await client.leases(),
        problems=await client.problems(),
        last_reload=reloads[-1] if reloads else None,
    )


def _is_healthy(overview: Overview) -> bool:
    return (
        overview.status.ready
        and all(server.state is ServerState.READY for server in overview.servers)
        and all(worker.state != "lost" for worker in overview.workers)
        and all(problem.severity != "error" for problem in overview.problems)
    )


def _status_lines(overview: Overview) -> Iterator[str]:
    state = overview.status
    ready = (
        "ready"
        if state.ready
        else "not ready" + (f" ({', '.join(state.pending)})" if state.pending else "")
    )
    yield f"system    {ready}, {state.package_version}, registry {state.registry_version}"
    yield f"servers   {_counted(server.state for server in overview.servers)}"
    down = sorted(
        (server for server in overview.servers if server.state is not ServerState.READY),
        key=attrgetter("state.rank"),
    )
    for server in down[:_MAX_ROWS]:
        reason = _line(server.problem) or server.state.meaning
        yield f"          {server.id} {server.state}: {reason}"
    yield from _more(down)
    yield f"workers   {_counted(worker.state for worker in overview.workers)}"
    for worker in overview.workers[:_MAX_ROWS]:
        yield (
            f"          {worker.id} {worker.state}, {worker.leases} of {worker.capacity} leases, "
            f"{worker.instances} instances"
        )
    yield from _more(overview.workers)
    sessions = len({lease.session for lease in overview.leases})
    yield f"leases    {len(overview.leases)} of {sessions} sessions"
    if state.store:  # an older control plane says nothing
        yield f"approvals kept in {state.store}"
    yield f"problems  {_counted(problem.severity for problem in overview.problems)}"
    for problem in sorted(overview.problems, key=attrgetter("severity"))[:_MAX_ROWS]:
        place = problem.server_id or problem.worker or problem.scope
        shown = any(
            server.id == problem.server_id and problem.message in server.problem
            for server in down[:_MAX_ROWS]
        )
        message = "see above" if shown else _line(problem.message)
        yield f"          {problem.severity} {problem.reason} {place}: {message}"
    yield from _more(overview.problems)
    reload = overview.last_reload
    yield "reload    none yet" if reload is None else f"reload    {_event_line(reload)}"
    errors = [problem for problem in overview.problems if problem.severity == "error"]
    if errors:
        yield f"What to do: leaseway runbook {errors[0].reason}"


def _more(items: Sequence[object]) -> Iterator[str]:
    if len(items) > _MAX_ROWS:
        yield f"          and {len(items) - _MAX_ROWS} more"


def _counted(words: Iterator[str] | Any) -> str:
    counts = Counter(words)
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items())) or "none"


@click.command(
    epilog=examples(
        "leaseway events --last 20",
        "leaseway events --server files --follow",
        "leaseway events --kind reload --json",
    )
)
@click.option("--server", default="", help="Print only events of this server.")
@click.option(
    "--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only this kind; repeatable."
)
@click.option(
    "--last", type=click.IntRange(1, 6_000), default=100, show_default=True, help="How many."
)
@click.option("--follow", is_flag=True, help="Keep printing new events until Ctrl-C.")
@json_option
@client_options
def events(
    server: str,
    kinds: tuple[str, ...],
    last: int,
    follow: bool,
    as_json: bool,
    connection: ConnectionOptions,
) -> None:
    """Print the history of events, oldest first.

    Events are reloads and their changes, commits, changes of servers, instances, workers, leases
    and problems, and actions of operators in the console. With --json one object per line.
    """

    async def request(client: AsyncClient) -> None:
        from leaseway.sdk.operators.observe import fetch_events, follow_events

        if not follow:
            found = await fetch_events(client, server_id=server, kinds=kinds, last=last)
            for event in found:
                _print_event(event, as_json)
            if not found:
                of = f" of server '{server}'" if server else ""
                say(
                    f"leaseway: The history has no events{of}. Wait for events with --follow.",
                    err=True,
                )
            return
        stream = follow_events(
            client, server_id=server, kinds=kinds, last=last, on_lost=_report_lost_once()
        )
        async for event in stream:
            _print_event(event, as_json)

    try:
        with_client(connection, request)
    except KeyboardInterrupt:
        return  # Ctrl-C is the normal end


def _report_lost_once() -> Callable[[], None]:
    is_reported = False

    def report() -> None:
        nonlocal is_reported
        if not is_reported:
            is_reported = True
            say("leaseway: The control plane is unreachable; waiting for it.", err=True)

    return report


def _print_event(event: EventInfo, as_json: bool) -> None:
    if as_json:
        say(json_line(event))
        return
    say(_event_line(event))
    for line in event.details[:_MAX_DETAILS]:
        say(f"    {_line(line)}")
    if len(event.details) > _MAX_DETAILS:
        say(f"    and {len(event.details) - _MAX_DETAILS} more lines (--json prints all)")


def _event_line(event: EventInfo) -> str:
    mark = "" if event.severity == "info" else f" {event.severity}"
    place = f" {event.worker}:" if event.worker else ""
    return f"{_clock(event.time)} {event.kind} {event.action}{mark}{place} {_line(event.message)}"


@click.command(
    epilog=examples(
        "leaseway trace --last",
        "leaseway trace --slow --server search",
        "leaseway trace 4bf92f3577b34da6a3ce929d0e0e4736",
    )
)
@click.argument("name", metavar="[ID]", default="")
@click.option("--last", "which", flag_value="last", help="The newest call.")
@click.option(
    "--slow", "which", flag_value="slow", help="The slowest calls of the last ten minutes."
)
@click.option("--failed", "which", flag_value="failed", help="The newest failed calls.")
@click.option("--server", default="", help="Only calls of this server.")
@click.option(
    "--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="How many."
)
@json_option
@client_options
def trace(
    name: str,
    which: str | None,
    server: str,
    limit: int,
    as_json: bool,
    connection: ConnectionOptions,
) -> None:
    """Show recent calls and the durations of their parts.

    ID is the id of a call or a trace. With ID or --last it prints the parts of one call; with
    --slow or --failed a list, and the parts of the first. A worker keeps its last 1,000 calls, its
    last 1,000 failed calls and its slowest calls, without arguments and results.
    """
    if bool(name) is bool(which):
        raise click.UsageError(
            "Give the id of a call or a trace, or one of --last, --slow, --failed."
        )
    selection: CallSelection = (
        "slow" if which == "slow" else "failed" if which == "failed" else "recent"
    )
    max_calls = 1 if which == "last" else limit

    async def request(client: AsyncClient) -> tuple[list[CallInfo], tuple[str, ...]]:
        from leaseway.sdk.operators.observe import fetch_calls

        return await fetch_calls(client, selection, name=name, server_id=server, limit=max_calls)

    calls, silent = with_client(connection, request)
    if silent:
        say(f"leaseway: No response from {', '.join(silent)}.", err=True)
    if as_json:
        print_json(calls)
    elif calls:
        _print_calls(calls)
    if not calls:
        raise CliFailure(f"No worker has {_selected(name, which)}.", FAILED)


def _selected(name: str, which: str | None) -> str:
    if name:
        return f"a call or trace '{name}'"
    return {"last": "any call", "slow": "a slow call"}.get(which or "", "a failed call")


def _print_calls(calls: Sequence[CallInfo]) -> None:
    if len(calls) > 1:
        print_table(
            ("TIME", "CALL", "SERVER", "TOOL", "OUTCOME", "TOOK", "SESSION"),
            [
                (
                    _clock(call.started_at),
                    call.id,
                    call.server_id,
                    call.tool or call.method,
                    call.outcome,
                    _took(call.duration),
                    call.session,
                )
                for call in calls
            ],
            "",
        )
        say()
    for line in _waterfall(calls[0]):
        say(line)


def _waterfall(call: CallInfo) -> Iterator[str]:
    yield (
        f"{_clock(call.started_at)} {call.server_id}:{_line(call.tool or call.method)} "
        f"{call.outcome} in {_took(call.duration)}"
    )
    yield f"call {call.id}" + (f", trace {call.trace_id}" if call.trace_id else "")
    facts = {
        "instance": call.instance_id,
        "tenant": call.tenant,
        "agent": call.agent,
        "session": call.session,
        "lease": call.lease_id,
    }
    yield ", ".join(f"{what} {_line(value)}" for what, value in facts.items() if value)
    if call.message:
        yield _line(call.message)
    whole = max(call.duration, 1e-9)
    width = max((len(phase.name) for phase in call.phases), default=0)
    for phase in call.phases:
        begin = min(_BAR_WIDTH - 1, int(_BAR_WIDTH * phase.offset / whole))
        length = max(1, min(_BAR_WIDTH - begin, round(_BAR_WIDTH * phase.duration / whole)))
        bar = " " * begin + "█" * length
        name = _line(phase.name).ljust(width)
        yield f"  {name}  {bar.ljust(_BAR_WIDTH)}  {_took(phase.duration)}"


def _took(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _clock(at: datetime) -> str:
    return at.astimezone().isoformat(sep=" ", timespec="milliseconds")[:23]


def _line(text: str) -> str:
    return " ".join(one_line(text).split())

"""`leaseway approvals`: list calls that need approval, show, approve and deny them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Final

import click

from leaseway.cli.options.common import ConnectionOptions, client_options, examples, json_option
from leaseway.cli.options.connection import with_client
from leaseway.cli.output.tables import one_line, print_json, print_table, say
from leaseway.wire.text.visible_text import unmistakable

if TYPE_CHECKING:
    from leaseway.sdk import Approval, AsyncClient

_MAX_LISTED: Final = 2_000
"""Characters of a call that a list shows; of a longer one a part would mislead."""
_HEADERS = ("APPROVAL", "STATE", "TENANT", "AGENT", "TOOL", "ARGUMENTS", "ASKED BY", "LEFT")


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "leaseway approvals",
        "leaseway approvals show 3f0c9a4be7d21c55",
        "leaseway approvals approve 3f0c9a4be7d21c55",
        "leaseway approvals deny 3f0c9a4be7d21c55 --note 'ask Ann first'",
    ),
)
@click.pass_context
def approvals(context: click.Context) -> None:
    """List, show, approve and deny calls that need approval.

    A call of a tool whose `risk` is `financial` needs a person's approval. An approval is valid for
    one call by the same tenant and agent with the same arguments, within 15 minutes.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


@approvals.command("list")
@click.option("--all", "everything", is_flag=True, help="Also show decided ones.")
@json_option
@client_options
def list_(everything: bool, as_json: bool, connection: ConnectionOptions) -> None:
    """List calls that wait for approval, newest first."""
    found = with_client(connection, methodcaller("approvals"))
    shown = [approval for approval in found if everything or approval.state == "waiting"]
    if as_json:
        print_json(shown)
        return
    now = datetime.now(UTC)
    rows = [
        (
            approval.id,
            approval.state
            if not approval.decided_by
            else f"{approval.state} by {approval.decided_by}",
            approval.tenant,
            approval.agent,
            f"{approval.server_id}:{approval.tool}",
            _listed(approval),
            approval.asked_by,
            _left(approval, now),
        )
        for approval in shown
    ]
    print_table(_HEADERS, rows, "No call waits for approval.")


@approvals.command()
@click.argument("approval_id", metavar="APPROVAL")
@json_option
@client_options
def show(approval_id: str, as_json: bool, connection: ConnectionOptions) -> None:
    """Show the whole call of APPROVAL, with invisible characters escaped."""
    found = with_client(connection, partial(_find, approval_id=approval_id))
    if as_json:
        print_json(found)
    else:
        _print_whole(found)


@approvals.command()
@click.argument("approval_id", metavar="APPROVAL")
@click.option("--note", default="", help="The reason, for the history.")
@click.option("--yes", is_flag=True, help="Do not ask before a long call is approved.")
@client_options
def approve(approval_id: str, note: str, yes: bool, connection: ConnectionOptions) -> None:
    """Approve the call of APPROVAL; it runs when its caller repeats it.

    A call that is too long for the list is shown first, and has to be confirmed.
    """
    if not yes:
        waiting = with_client(connection, partial(_find, approval_id=approval_id))
        if waiting.state == "waiting" and _length(waiting) > _MAX_LISTED:
            _print_whole(waiting)
            if not sys.stdin.isatty():
                raise click.UsageError(
                    f"The list does not show this call, because it is long. Read it with 'leaseway "
                    f"approvals show {approval_id}', then approve it with --yes."
                )
            click.confirm("Approve this call?", abort=True)
    _decide(connection, approval_id, note, approve=True)


@approvals.command()
@click.argument("approval_id", metavar="APPROVAL")
@click.option("--note", default="", help="The reason, for the history.")
@client_options
def deny(approval_id: str, note: str, connection: ConnectionOptions) -> None:
    """Deny the call of APPROVAL."""
    _decide(connection, approval_id, note, approve=False)


def _decide(connection: ConnectionOptions, approval_id: str, note: str, *, approve: bool) -> None:
    async def request(client: AsyncClient) -> Approval:
        decide = client.approve if approve else client.deny
        return await decide(approval_id, note)

    decided = with_client(connection, request)
    what = f"{decided.server_id}:{decided.tool} of tenant {decided.tenant}"
    if approve:
        left = _left(decided, datetime.now(UTC))
        result = f"is approved once, for {left}: its caller must repeat it."
    else:
        result = "is denied."
    say(one_line(f"The call of {what} with {_listed(decided)} {result}"))


async def _find(client: AsyncClient, approval_id: str) -> Approval:
    for found in await client.approvals():
        if found.id == approval_id:
            return found
    raise click.ClickException(
        f"There is no approval '{approval_id}'. It may have expired, or a control plane that keeps "
        "approvals in memory was restarted."
    )


def _length(approval: Approval) -> int:
    return len(approval.arguments) + len(approval.extra)


def _listed(approval: Approval) -> str:
    if _length(approval) > _MAX_LISTED:
        return f"{_length(approval)} characters: leaseway approvals show {approval.id}"
    return f"{approval.arguments} {approval.extra}".rstrip()


def _print_whole(approval: Approval) -> None:
    say(
        f"{approval.server_id}:{approval.tool} of tenant {approval.tenant}, agent "
        f"'{approval.agent}', session '{approval.session}', asked by {approval.asked_by}"
    )
    say("Arguments:")
    _print_members(approval.arguments)
    if approval.extra:
        say("Beside the arguments:")
        _print_members(approval.extra)


def _print_members(shown: str) -> None:
    """Print each member of a JSON object on a line, as the control plane has escaped it."""
    for name, value in json.loads(shown).items():
        text = json.dumps({name: value}, ensure_ascii=False)[1:-1]
        say(f"  {unmistakable(text)}")


def _left(approval: Approval, now: datetime) -> str:
    if approval.expires_at is None or approval.state not in ("waiting", "approved"):
        return ""
    return f"{max(0.0, (approval.expires_at - now).total_seconds()) / 60:.0f} min"

"""`leaseway approvals`: calls of tools that need a person, and a person's answer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from leaseway.cli.options.common import Connection, client_options, examples, json_option
from leaseway.cli.options.connection import ask
from leaseway.cli.output.tables import one_line, print_json, print_table, say

if TYPE_CHECKING:
    from leaseway.sdk import Approval, AsyncClient

_HEADERS = ("APPROVAL", "STATE", "TENANT", "AGENT", "TOOL", "ARGUMENTS", "ASKED BY", "LEFT")


@click.group(
    invoke_without_command=True,
    epilog=examples(
        "leaseway approvals",
        "leaseway approvals approve 3f0c9a4be7d21c55",
        "leaseway approvals deny 3f0c9a4be7d21c55 --note 'ask Ann first'",
    ),
)
@click.pass_context
def approvals(context: click.Context) -> None:
    """List calls that wait for a person, and approve or deny them.

    Calls of tools whose `risk` is `financial` run when a person has agreed to that very call: of
    that tenant and agent, with those arguments, once, within 15 minutes.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


@approvals.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that were decided on.")
@json_option
@client_options
def list_(everything: bool, as_json: bool, connection: Connection) -> None:
    """List calls that wait for a person, the newest first."""
    found = ask(connection, lambda client: client.approvals())
    shown = [one for one in found if everything or one.state == "waiting"]
    if as_json:
        print_json(shown)
        return
    now = datetime.now(UTC)
    rows = [
        (
            one.id,
            one.state if not one.decided_by else f"{one.state} by {one.decided_by}",
            one.tenant,
            one.agent,
            f"{one.server_id}:{one.tool}",
            one.arguments,
            one.asked_by,
            _left(one, now),
        )
        for one in shown
    ]
    print_table(_HEADERS, rows, "No call waits for a person.")


@approvals.command()
@click.argument("approval_id", metavar="APPROVAL")
@click.option("--note", default="", help="Why, for the history.")
@client_options
def approve(approval_id: str, note: str, connection: Connection) -> None:
    """Agree to the call of APPROVAL; it runs when its caller makes it again."""
    _decide(connection, approval_id, note, approve=True)


@approvals.command()
@click.argument("approval_id", metavar="APPROVAL")
@click.option("--note", default="", help="Why, for the history.")
@client_options
def deny(approval_id: str, note: str, connection: Connection) -> None:
    """Refuse the call of APPROVAL."""
    _decide(connection, approval_id, note, approve=False)


def _decide(connection: Connection, approval_id: str, note: str, *, approve: bool) -> None:
    async def question(client: AsyncClient) -> Approval:
        decide = client.approve if approve else client.deny
        return await decide(approval_id, note)

    decided = ask(connection, question)
    what = f"{decided.server_id}:{decided.tool} of tenant {decided.tenant}"
    if approve:
        left = _left(decided, datetime.now(UTC))
        end = f"may run once, within {left}: its caller makes it again."
    else:
        end = "is refused."
    say(one_line(f"The call of {what} with {decided.arguments} {end}"))


def _left(approval: Approval, now: datetime) -> str:
    if approval.expires_at is None or approval.state not in ("waiting", "approved"):
        return ""
    return f"{max(0.0, (approval.expires_at - now).total_seconds()) / 60:.0f} min"

"""`leaseway approvals`: list calls that need approval, and approve or deny them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from leaseway.cli.options.common import ConnectionOptions, client_options, examples, json_option
from leaseway.cli.options.connection import with_client
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
    """List, approve and deny calls that need approval.

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
    found = with_client(connection, lambda client: client.approvals())
    shown = [each for each in found if everything or each.state == "waiting"]
    if as_json:
        print_json(shown)
        return
    now = datetime.now(UTC)
    rows = [
        (
            each.id,
            each.state if not each.decided_by else f"{each.state} by {each.decided_by}",
            each.tenant,
            each.agent,
            f"{each.server_id}:{each.tool}",
            each.arguments,
            each.asked_by,
            _left(each, now),
        )
        for each in shown
    ]
    print_table(_HEADERS, rows, "No call waits for approval.")


@approvals.command()
@click.argument("approval_id", metavar="APPROVAL")
@click.option("--note", default="", help="The reason, for the history.")
@client_options
def approve(approval_id: str, note: str, connection: ConnectionOptions) -> None:
    """Approve the call of APPROVAL; it runs when its caller repeats it."""
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
    say(one_line(f"The call of {what} with {decided.arguments} {result}"))


def _left(approval: Approval, now: datetime) -> str:
    if approval.expires_at is None or approval.state not in ("waiting", "approved"):
        return ""
    return f"{max(0.0, (approval.expires_at - now).total_seconds()) / 60:.0f} min"

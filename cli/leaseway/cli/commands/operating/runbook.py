"""`leaseway runbook`: explain a reason of a problem or an error."""

from __future__ import annotations

import click

from leaseway.cli.errors import FAILED, CliFailure
from leaseway.cli.options.common import examples, json_option
from leaseway.cli.output.tables import print_json, print_table, say
from leaseway.runbook import entries
from leaseway.wire.names import nearest


@click.command(epilog=examples("leaseway runbook COMMAND_NOT_FOUND", "leaseway runbook"))
@click.argument("reason", default="")
@json_option
def runbook(reason: str, as_json: bool) -> None:
    """Explain a reason, and what to do.

    Without REASON, list all reasons of problems and errors.
    """
    reasons = entries()
    if not reason:
        if as_json:
            print_json(list(reasons.values()))
        else:
            rows = [(entry.reason, entry.cause) for entry in reasons.values()]
            print_table(("REASON", "CAUSE"), rows, "")
        return
    entry = reasons.get(reason.upper())
    if entry is None:
        near = nearest(reason.upper(), reasons, limit=1)
        hint = f" Did you mean {near[0]}?" if near else " See: leaseway runbook"
        raise CliFailure(f"There is no reason '{reason}'.{hint}", FAILED)
    if as_json:
        print_json(entry)
        return
    say(f"{entry.reason} ({entry.group})")
    for title, text in (("Cause", entry.cause), ("Look at", entry.look), ("Do", entry.do)):
        say(f"  {title:8} {text}")

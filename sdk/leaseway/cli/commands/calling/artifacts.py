"""`leaseway artifact`: the bytes of an image or a sound that an earlier call returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from leaseway.cli.options.common import Connection, client_options, examples, timeout_option
from leaseway.cli.options.connection import ask
from leaseway.cli.output.files import Output, Piece, output_options, stdout_or_fail

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient


@click.command(
    epilog=examples(
        "leaseway call browser_take_screenshot --session s1",
        "leaseway artifact artifacts/mcp/browser/… --session s1 --output shot.png",
    )
)
@click.argument("ref")
@click.option("--session", required=True, help="The session of the call that returned it.")
@output_options("it")
@timeout_option("Seconds that the worker may take for each part; else 30.")
@client_options
def artifact(
    ref: str, session: str, output: Output | None, timeout: float | None, connection: Connection
) -> None:
    """Get the image or sound REF of an earlier call.

    REF is the `artifact` of a content item, as `leaseway call` shows it. Only the session and
    tenant of that call can read it, as long as its worker runs and keeps it. Without --output its
    bytes go to stdout, unless that is a terminal.
    """
    target = output or stdout_or_fail()

    async def question(client: AsyncClient) -> Piece:
        kept = client.session(session).read_artifact(ref, timeout=timeout)
        content = await kept
        return Piece(content, ref.rpartition("/")[2], kept.mime_type)

    target.save([ask(connection, question)])

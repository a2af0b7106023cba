"""`leaseway completion`: shell completion of commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_HELP = """Print the completion script of SHELL.

\b
bash:  eval "$(leaseway completion bash)"
zsh:   eval "$(leaseway completion zsh)"
fish:  leaseway completion fish | source
"""


@click.command(help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    kind = get_completion_class(shell)
    assert kind is not None
    complete = kind(ctx.find_root().command, {}, "leaseway", "_LEASEWAY_COMPLETE")
    # Not `source()`, which runs bash to get its version: bash may not be installed.
    click.echo(complete.source_template % complete.source_vars())

"""The root command: its subcommands, and its error messages."""

from __future__ import annotations

import errno
import importlib
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from leaseway.cli.errors import FAILED, USAGE, CliFailure
from leaseway.cli.options.common import root_options
from leaseway.cli.output.tables import one_line
from leaseway.wire.names import nearest
from leaseway.wire.version import PACKAGE_VERSION

# The module of each subcommand, imported when the command runs or prints its help.
COMMANDS: Final = {
    "up": "leaseway.cli.commands.running.up:up",
    "control-plane": "leaseway.cli.commands.running.planes:control_plane",
    "worker": "leaseway.cli.commands.running.operate:worker",
    "mcp": "leaseway.cli.commands.running.mcp:mcp",
    "mcp-front": "leaseway.cli.commands.running.mcp:mcp_front",
    "wait": "leaseway.cli.commands.operating.status:wait",
    "status": "leaseway.cli.commands.operating.observe:status",
    "top": "leaseway.cli.commands.operating.top:top",
    "events": "leaseway.cli.commands.operating.observe:events",
    "trace": "leaseway.cli.commands.operating.observe:trace",
    "dump": "leaseway.cli.commands.operating.dump:dump",
    "runbook": "leaseway.cli.commands.operating.runbook:runbook",
    "check": "leaseway.cli.commands.configuring.check:check",
    "config": "leaseway.cli.commands.configuring.config:config",
    "diff": "leaseway.cli.commands.configuring.config:diff",
    "import": "leaseway.cli.commands.configuring.config:import_file",
    "new": "leaseway.cli.commands.configuring.new:new",
    "servers": "leaseway.cli.commands.operating.listings:servers",
    "tools": "leaseway.cli.commands.calling.calls:tools",
    "call": "leaseway.cli.commands.calling.calls:call",
    "prompts": "leaseway.cli.commands.calling.prompts_resources:prompts",
    "prompt": "leaseway.cli.commands.calling.prompts_resources:prompt",
    "resources": "leaseway.cli.commands.calling.prompts_resources:resources",
    "resource": "leaseway.cli.commands.calling.prompts_resources:resource",
    "artifact": "leaseway.cli.commands.calling.calls:artifact",
    "leases": "leaseway.cli.commands.operating.listings:leases",
    "lease": "leaseway.cli.commands.running.operate:lease",
    "workers": "leaseway.cli.commands.operating.listings:workers",
    "tenants": "leaseway.cli.commands.operating.listings:tenants",
    "problems": "leaseway.cli.commands.operating.listings:problems",
    "approvals": "leaseway.cli.commands.calling.approvals:approvals",
    "key": "leaseway.cli.commands.configuring.keys:key",
    "audit": "leaseway.cli.commands.operating.audit:audit",
    "login": "leaseway.cli.commands.configuring.logins:login",
    "logins": "leaseway.cli.commands.configuring.logins:logins",
    "logout": "leaseway.cli.commands.configuring.logins:logout",
    "vault": "leaseway.cli.commands.configuring.vault:vault",
    "logs": "leaseway.cli.commands.operating.listings:logs",
    "version": "leaseway.cli.commands.operating.status:version",
    "completion": "leaseway.cli.commands.completion:completion",
}

# Common words for commands that have another name, or are subcommands of a group.
_ALIASES: Final = {
    "approve": "approvals approve",
    "deny": "approvals deny",
    "drain": "worker drain",
    "help": "--help",
    "create": "new server",
    "init": "new server",
    "list": "servers",
    "revoke": "lease revoke",
    "rotate": "vault rotate",
    "run": "up",
    "schema": "check --schema",
    "start": "up",
}

_logger = logging.getLogger(__name__)


class _RootGroup(click.Group):
    """Imports subcommands on use, and prints every error as `leaseway: SENTENCE`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = (
                [_ALIASES[args[0]]] if args[0] in _ALIASES else nearest(args[0], COMMANDS, limit=1)
            )
            hint = f"Did you mean '{near[0]}'?" if near else "See: leaseway --help"
            raise click.UsageError(f"There is no command '{args[0]}'. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        """Run the command and exit; never print a traceback."""
        extra["standalone_mode"] = False
        _fix_streams()
        try:
            status = super().main(args, prog_name, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            sys.exit(USAGE)
        except click.UsageError as error:
            _exit(_usage(error), USAGE)
        except CliFailure as error:
            _exit(error.format_message(), error.status)
        except click.ClickException as error:
            _exit(error.format_message(), FAILED)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)
        except BrokenPipeError:
            _exit_silently()
        except ModuleNotFoundError as error:
            _exit(_missing_package(error), FAILED)
        except OSError as error:
            _logger.debug("The command failed.", exc_info=True)
            _exit(_os_error(error), FAILED)
        except Exception as error:
            _logger.debug("The command failed.", exc_info=True)
            _exit(f"{type(error).__name__}: {error} (--log-level debug shows more)", FAILED)
        sys.exit(status if isinstance(status, int) else 0)


def _fix_streams() -> None:
    # A shell's `>&-` closes a stream, so that Python has None for it: discard its output.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123
    # Escape characters that the terminal's encoding lacks, rather than fail.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _usage(error: click.UsageError) -> str:
    ctx = error.ctx
    if isinstance(error, click.NoSuchOption) and ctx is not None:
        if ctx.parent is None:
            return f"{error.format_message()} Options of a command come after its name."
        arguments = (param for param in ctx.command.params if isinstance(param, click.Argument))
        if error.option_name == "--config" and any(arg.name == "config" for arg in arguments):
            return (
                f"{error.format_message()} Give the file without an option: {ctx.command_path} FILE"
            )
    return error.format_message()


def _os_error(error: OSError) -> str:
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
        # Python's flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return f"Can't write the output: {error.strerror}."
    return f"{type(error).__name__}: {error} (--log-level debug shows more)"


def _exit(message: str, status: int) -> NoReturn:
    lines = map(one_line, message.splitlines())  # it may contain text of a server
    click.echo("leaseway: " + "\n".join(lines), err=True)
    sys.exit(status)


def _exit_silently() -> NoReturn:
    # The reader of stdout has exited (`leaseway tools | head`), which is no error. Python's flush
    # at exit must not print one either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(FAILED)


def _missing_package(error: ModuleNotFoundError) -> str:
    name = error.name or ""
    if name.startswith("leaseway."):
        return (
            f"This installation lacks '{name}'. Install all packages: pip install 'leaseway[all]'"
        )
    return f"This command needs the package '{name}'. Install it: pip install 'leaseway[all]'"


@click.group(
    cls=_RootGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit status: 0 success; 1 failure, or an error of the tool; 2 wrong usage; "
    "3 control plane unreachable; 130 interrupted.",
)
@click.version_option(PACKAGE_VERSION, message="leaseway %(version)s")
@root_options
def cli() -> None:
    """Run MCP servers for backend services."""

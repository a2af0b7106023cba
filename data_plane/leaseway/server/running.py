"""Runs a server class as a process: `python -m leaseway.server MODULE CLASS`.

The `config` of the configuration entry is passed as JSON in the variable `LEASEWAY_SERVER_CONFIG`,
because arguments would show secrets in process lists. It is removed from the environment at once,
so that child processes do not inherit it.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import importlib
import inspect
import json
import logging
import os
import pkgutil
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from mcp.shared.exceptions import MCPDeprecationWarning

from leaseway.server.base import CONFIG_VARIABLE, BaseMCPServer, Notifier
from leaseway.server.faults import DefinitionError, cause_of, describe, leaving
from leaseway.server.serving import serve
from leaseway.telemetry.tracing import configure_telemetry

_STOP_GRACE: Final = 2.0
"""Seconds for `stop()` of a class of which a task has ended the process."""


def main() -> int:
    """Serve a class over stdio until standard input ends; an error is the last line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m leaseway.server",
        description="Serve a class that is a leaseway.server.BaseMCPServer, over stdio. Its config"
        f" is JSON in {CONFIG_VARIABLE}.",
    )
    parser.add_argument("module", help="its module, as in an import statement")
    parser.add_argument("name", metavar="class", help="its name there")
    options = parser.parse_args()
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # PYTHONSAFEPATH removes it
    return run(partial(_build, options.module, options.name), options.module)


def run(build: Callable[[Notifier], BaseMCPServer], module: str) -> int:
    """Serve a server and return the exit status.

    Args:
        build: Builds the server, inside the event loop.
        module: The module of its class, for error locations and as the service name in traces.
    """
    logging.basicConfig()  # the official package would configure it otherwise
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # of log messages
    telemetry = configure_telemetry(module.rpartition(".")[2])
    try:
        anyio.run(serve, build, module, backend_options={"loop_factory": _Loop})
    except KeyboardInterrupt:
        return 130
    except BaseException as error:  # noqa: BLE001 - the process ends with a sentence
        cause = cause_of(error)
        if isinstance(cause, SystemExit):
            return _exit_status(cause)
        error = cause
        if not isinstance(error, DefinitionError):
            traceback.print_exception(error)
        print(describe(error, module), file=sys.stderr)  # noqa: T201
        return 1
    finally:
        telemetry.shutdown()
    return 0


class _Loop(asyncio.SelectorEventLoop):
    """A loop whose process ends when a task calls `sys.exit()`, which ends the loop.

    Without a loop nothing answers, and the thread that reads standard input keeps the process until
    there is a next request: calls in flight would wait for their deadlines.
    """

    def run_forever(self) -> None:
        try:
            super().run_forever()
        except SystemExit as error:
            leaving.set()
            traceback.print_exception(error)
            status = _exit_status(error)
            timer = threading.Timer(_STOP_GRACE, os._exit, (status,))
            timer.daemon = True
            timer.start()
            raise SystemExit(status) from error


def _exit_status(error: SystemExit) -> int:
    """Return the status of a process that exits; print what takes its place, as Python does."""
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)  # noqa: T201
    return 1


def _build(module: str, name: str, notifier: Notifier) -> BaseMCPServer:
    try:
        config = json.loads(os.environ.pop(CONFIG_VARIABLE, "{}"))
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise DefinitionError(f"{CONFIG_VARIABLE} must hold a JSON object.")
    server = _class(module, name)(transport=notifier, config=config)
    if not hasattr(server, "_config"):
        raise DefinitionError(
            f"{name}.__init__() does not call super().__init__(transport, config)."
        )
    return server


def _class(module: str, name: str) -> type[BaseMCPServer]:
    try:
        members = vars(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        known = [found.name for found in pkgutil.iter_modules()]
        near = difflib.get_close_matches(error.name, known, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DefinitionError(
            f"Module {module} was not found in {Path.cwd()}, on PYTHONPATH (which 'env' may set) or"
            f" among the installed packages.{hint}"
        ) from None
    classes = {
        key: member
        for key, member in members.items()
        if inspect.isclass(member) and issubclass(member, BaseMCPServer)
    }
    if name not in classes:
        near = difflib.get_close_matches(name, classes, 1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(classes) or 'none'}."
        raise DefinitionError(f"The module {module} has no class {name}: {hint}")
    return classes[name]

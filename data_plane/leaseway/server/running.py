"""Runs a server class as a process: `python -m leaseway.server MODULE CLASS`.

The `config` of the configuration entry is passed as JSON in the variable `LEASEWAY_SERVER_CONFIG`,
because arguments would show secrets in process lists. It is removed from the environment at once,
so that child processes do not inherit it.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio

from leaseway.server.base import BaseMCPServer, Notifier
from leaseway.server.faults import describe
from leaseway.server.serving import serve
from leaseway.telemetry.tracing import configure_telemetry

CONFIG_VARIABLE: Final = "LEASEWAY_SERVER_CONFIG"


class StartError(Exception):
    """The class cannot be run; the message tells how to fix that."""


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


def run(build: Callable[[Notifier], BaseMCPServer], module: str | None = None) -> int:
    """Serve a server and return the exit status.

    Args:
        build: Builds the server, inside the event loop.
        module: The module of its class, for error locations and as the service name in traces.
    """
    telemetry = configure_telemetry((module or "leaseway-server").rpartition(".")[2])
    try:
        anyio.run(serve, build, partial(_folder, module))
    except KeyboardInterrupt:
        return 130
    except BaseException as raised:  # noqa: BLE001 - the process ends with a sentence
        error = _first(raised)
        if isinstance(error, SystemExit):
            return error.code if isinstance(error.code, int) else 1
        if isinstance(error, StartError):
            print(error, file=sys.stderr)  # noqa: T201
            return 1
        traceback.print_exception(error)
        print(describe(error, _folder(module)), file=sys.stderr)  # noqa: T201
        return 1
    finally:
        telemetry.shutdown()
    return 0


def pop_config() -> dict[str, Any]:
    """Return the `config` and remove it from the environment; raises `StartError`."""
    text = os.environ.pop(CONFIG_VARIABLE, "")
    try:
        config = json.loads(text) if text else {}
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise StartError(f"{CONFIG_VARIABLE} must hold a JSON object.")
    return config


def _build(module: str, name: str, notifier: Notifier) -> BaseMCPServer:
    config = pop_config()
    server_class = _class(module, name)
    missing = sorted(server_class.__abstractmethods__)
    if missing:
        raise StartError(f"The class {name} of {module} lacks {', '.join(missing)}; add it.")
    arguments: Mapping[str, Any] = {"transport": notifier, "config": config}
    parameters = inspect.signature(server_class).parameters
    if not any(item.kind is inspect.Parameter.VAR_KEYWORD for item in parameters.values()):
        arguments = {key: value for key, value in arguments.items() if key in parameters}
    server = server_class(**arguments)
    if not hasattr(server, "_config"):
        raise StartError(f"{name}.__init__() does not call super().__init__(transport, config).")
    return server


def _class(module: str, name: str) -> type[BaseMCPServer]:
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(error.name + ".")):
            raise
        raise StartError(
            f"Module {module} was not found in {Path.cwd()}, on PYTHONPATH (which 'env' may set) or"
            " among the installed packages."
        ) from None
    member = getattr(loaded, name, None)
    if inspect.isclass(member) and issubclass(member, BaseMCPServer):
        return member
    if member is not None:
        raise StartError(f"{name} of {module} is no subclass of leaseway.server.BaseMCPServer.")
    classes = [
        key
        for key, value in vars(loaded).items()
        if inspect.isclass(value)
        and issubclass(value, BaseMCPServer)
        and value.__module__ == module
    ]
    near = difflib.get_close_matches(name, classes, 1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(classes) or 'none'}."
    raise StartError(f"The module {module} has no class {name}: {hint}")


def _folder(module: str | None) -> str | None:
    loaded = sys.modules.get(module or "")
    file = getattr(loaded, "__file__", None)
    return str(Path(file).resolve().parent) if file else None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

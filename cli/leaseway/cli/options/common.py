"""Options that many commands share. The root command accepts them, too."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import click

from leaseway.telemetry.logs import LEVELS, LogFormat, configure_logging
from leaseway.wire.channels.endpoint import (
    ADDRESS_VARIABLE,
    DEFAULT_ADDRESS,
    Endpoint,
    Endpoints,
    parse_endpoint,
    parse_endpoints,
)
from leaseway.wire.names import DEFAULT_TENANT

Command = Callable[..., Any]
T = TypeVar("T")


class _AddressType(click.ParamType[T]):
    name = "HOST:PORT"

    def __init__(self, parse: Callable[[str], T]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(str(value))  # a default that is parsed already is one again
        except ValueError as error:
            self.fail(str(error), param, ctx)


ENDPOINT: Final = _AddressType(parse_endpoint)
"""The type of an option that takes HOST:PORT."""
_ENDPOINTS: Final = _AddressType(parse_endpoints)
"""The type of an option that takes the addresses of control planes."""


class _SecondsType(click.ParamType[float]):
    name = "SECONDS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (math.isfinite(seconds) and seconds > 0):
            self.fail(f"'{value}' is not a number of seconds above 0.", param, ctx)
        return seconds


SECONDS: Final = _SecondsType()
"""The type of an option that takes a duration."""


@dataclass(frozen=True)
class LogOptions:
    """The given log options; None means not given."""

    level: str | None = None
    fmt: LogFormat | None = None
    file: str | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        return (Path(self.file),) if self.file else ()

    def configure(self, service: str, *, default_level: str = "info") -> None:
        """Configure this process's logging.

        Raises:
            click.UsageError: The file cannot be opened.
        """
        try:
            configure_logging(self.level or default_level, self.fmt or "text", self.file, service)
        except OSError as error:
            raise click.UsageError(
                f"The log file {self.file} cannot be written: {error.strerror}."
            ) from None

    def as_arguments(self) -> list[str]:
        """Return these options for a child process."""
        pairs = {"--log-level": self.level, "--log-format": self.fmt, "--log-file": self.file}
        return [part for name, value in pairs.items() if value for part in (name, value)]


@dataclass(frozen=True)
class ConnectionOptions:
    """Which control plane to connect to, and for which tenant."""

    address: Endpoints
    tenant: str
    log: LogOptions


_ADDRESS = click.option(
    "--address",
    type=_ENDPOINTS,
    help="The control plane, or several with commas between them; else LEASEWAY_ADDRESS, else "
    f"{DEFAULT_ADDRESS}.",
)
_TENANT = click.option(
    "--tenant", help=f"The tenant to act for; else the credential's, else '{DEFAULT_TENANT}'."
)
_LOG: Final = (
    click.option("--log-level", type=click.Choice(LEVELS), help="The lowest level to write."),
    click.option(
        "--log-format", type=click.Choice(["text", "json"]), help="The format of log lines."
    ),
    click.option(
        "--log-file",
        type=click.Path(dir_okay=False),
        help="A file to append log lines to, instead of stderr.",
    ),
)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON for programs instead of a table."
)


seen_by_option = click.option(
    "--session",
    metavar="SESSION",
    help="List what this session sees: its own servers may add, change and remove some.",
)


def examples(*lines: str) -> str:
    """Return a help epilog that shows command lines."""
    title = "Examples:" if len(lines) > 1 else "Example:"
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])


def timeout_option(what: str, default: float | None = None) -> Callable[[Command], Command]:
    return click.option(
        "--timeout", type=SECONDS, default=default, show_default=default is not None, help=what
    )


def checked_web_url(_context: click.Context, _option: click.Parameter, url: str) -> str:
    """Check the address of one of our pages for people and programs elsewhere, or an empty one."""
    if not url:
        return url
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_plain = not parts.query and not parts.fragment and "@" not in parts.netloc
    except ValueError:
        is_web = is_plain = False
    if not is_web or not is_plain:
        raise click.BadParameter(
            "The URL must begin with https:// or http://, name a host, and have no user, query or"
            " fragment."
        )
    return url


metrics_option = click.option(
    "--metrics",
    type=ENDPOINT,
    help="Serve metrics for Prometheus at http://HOST:PORT/metrics; port 0 takes any free port.",
)


def root_options(command: Command) -> Command:
    """Add the shared options to the root command, so that they work before a subcommand's name."""

    @functools.wraps(command)
    def wrapper(**_shared: Any) -> Any:
        return command()

    address = click.option(
        "--address",
        type=_ENDPOINTS,
        envvar=ADDRESS_VARIABLE,
        default=DEFAULT_ADDRESS,
        show_default=True,
        show_envvar=True,
        help="The control plane to connect to.",
    )
    return with_options(wrapper, (address, _TENANT, *_LOG))


def log_options(command: Command) -> Command:
    """Add `--log-level`, `--log-format` and `--log-file`, as the argument `log`."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        log = _log_options(kwargs)
        return command(log=log, **kwargs)

    return with_options(wrapper, _LOG)


def client_options(command: Command) -> Command:
    """Add the options of commands that connect to a system, as the argument `connection`."""

    @functools.wraps(command)
    def wrapper(**kwargs: Any) -> Any:
        context = click.get_current_context()
        root = {**context.find_root().params, **_utf8_texts(context.find_root())}
        kwargs |= {name: text for name, text in _utf8_texts(context).items() if name in kwargs}
        address = kwargs.pop("address") or root.get("address") or parse_endpoints(DEFAULT_ADDRESS)
        tenant = kwargs.pop("tenant") or root.get("tenant") or ""
        log = _log_options(kwargs)
        return command(connection=ConnectionOptions(address, tenant, log), **kwargs)

    return with_options(wrapper, (_ADDRESS, _TENANT, *_LOG))


def is_address_given() -> bool:
    """Return whether the running command was told which control plane to connect to."""
    context = click.get_current_context()
    root = context.find_root()
    given = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)
    return context.get_parameter_source("address") in given or (
        root.get_parameter_source("address") in given
    )


def shared_key() -> str | None:
    """Return the shared key of this process's environment.

    Raises:
        click.UsageError: It cannot be sent as a header.
    """
    from leaseway.wire.channels.auth import read_key

    try:
        return read_key(os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def check_client_tls() -> None:
    """Check the certificate files with which this process connects to planes, before it does.

    Raises:
        click.UsageError: They cannot be used.
    """
    from leaseway.wire.channels.tls import read_client_tls

    try:
        read_client_tls()
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def check_plane_tls() -> None:
    """Check the certificate files with which this process listens and connects, before it does.

    Raises:
        click.UsageError: They cannot be used.
    """
    from leaseway.wire.channels.tls import read_client_tls, server_context

    try:
        tls = read_client_tls()
        if tls.serves:
            server_context(tls)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def require_key_beyond_loopback(endpoint: Endpoint) -> str | None:
    """Return the shared key; an address beyond loopback requires one.

    Raises:
        click.UsageError: There is none, or it cannot be used.
    """
    from leaseway.wire.channels.auth import check_listen

    key = shared_key()
    try:
        check_listen(endpoint, key)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return key


def _utf8_texts(context: click.Context) -> dict[str, Any]:
    """Return a command's texts as UTF-8, without its paths: these may contain any bytes."""
    texts: dict[str, Any] = {}
    for param in context.command.params:
        value = context.params.get(param.name or "")
        if param.name is None or isinstance(param.type, click.Path):
            continue
        if isinstance(value, str):
            texts[param.name] = _as_utf8(value, param, context)
        elif isinstance(value, tuple):
            texts[param.name] = tuple(
                _as_utf8(text, param, context) if isinstance(text, str) else text for text in value
            )
    return texts


def _as_utf8(value: str, param: click.Parameter, context: click.Context) -> str:
    """Decode a text's bytes as UTF-8, whatever the locale is."""
    try:
        return value.encode("utf-8", "surrogateescape").decode("utf-8")
    except UnicodeError:
        raise click.BadParameter("It is not UTF-8.", context, param) from None


def _log_options(kwargs: dict[str, Any]) -> LogOptions:
    root = click.get_current_context().find_root().params
    level, fmt, file = (
        kwargs.pop(name) or root.get(name) for name in ("log_level", "log_format", "log_file")
    )
    return LogOptions(level, cast("LogFormat | None", fmt), file)


def with_options(command: Command, options: Sequence[Callable[[Command], Command]]) -> Command:
    """Add options to a command, in the order of its help."""
    for option in reversed(options):
        command = option(command)
    return command

"""`leaseway dump`: write the state of a system into one archive, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
import time
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args
from urllib.parse import urlsplit

import click

from leaseway.cli.commands.server_checks import servers_in_view
from leaseway.cli.errors import FAILED, USAGE, CliFailure
from leaseway.cli.options.common import ConnectionOptions, client_options, examples, shared_key
from leaseway.cli.options.config import ConfiguredCommand
from leaseway.cli.options.connection import with_client
from leaseway.cli.output.tables import plain, say
from leaseway.wire.messages.states import CallSelection
from leaseway.wire.secrets.redaction import Hidden, hide, redact
from leaseway.wire.secrets.secret_names import looks_secret
from leaseway.wire.version import PACKAGE_VERSION, PROTOCOL_VERSION

if TYPE_CHECKING:
    from leaseway.sdk import AsyncClient

_MAX_LOGS: Final = 100
_MAX_PAGE: Final = 32 * 1024 * 1024
_PAGE_TIMEOUT: Final = 10.0
_CREDENTIAL: Final = re.compile(
    r"(?i)\b((?:bearer|basic)\s+|(?:api[-_]?key|token|secret|password|passwd|authorization"
    r"|credential)s?\\?[\"']?\s*[=:]\s*\\?[\"']?(?:(?:bearer|basic|token)\s+)?)"
    r"([^\s\"',;\\]{4,})"
)
_TOKEN: Final = re.compile(
    r"\b(sk-[\w-]{8,}|gh[pousr]_\w{20,}|xox[abprs]-[\w-]{10,}|AKIA[0-9A-Z]{16}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_IN_URL: Final = re.compile(r"(://)[^/\s@:]+:[^/\s@]+@")
_HIDDEN: Final = "[redacted]"


@click.command(
    cls=ConfiguredCommand,
    epilog=examples(
        "leaseway dump",
        "leaseway dump --config .minds/mcp.yaml --metrics http://127.0.0.1:9464/metrics",
    ),
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The archive to write (.tar.gz); else leaseway-dump-TIME.tar.gz here.",
)
@click.option(
    "--config", "config", multiple=True, help="A configuration whose effective values to add."
)
@click.option("--metrics", "pages", multiple=True, metavar="URL", help="A metrics page to add.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@client_options
def dump(
    output: Path | None,
    config: tuple[str, ...],
    pages: tuple[str, ...],
    force: bool,
    connection: ConnectionOptions,
) -> None:
    """Write the state of a running system into one archive.

    The archive contains the status, servers, workers, leases, problems, events, slow and failed
    calls, traffic, the last stderr lines of each server and versions; with --config the effective
    configuration, with --metrics pages of metrics. Recognized credentials are replaced by
    [redacted]; check the archive before you share it.
    """
    target = output or Path(f"leaseway-dump-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar.gz")
    if target.exists() and not force:
        raise CliFailure(f"{target} already exists; --force replaces it.", USAGE)
    hidden = _hide_environment()
    found: dict[str, str] = {"versions.json": _json(_versions())}
    found |= with_client(connection, _fetch_all)
    if config:
        found["configuration.json"] = _configuration(config)
    for number, url in enumerate(pages, start=1):
        found[f"metrics-{number}.txt"] = _page(url)
    _write(target, found)
    del hidden  # its values are redacted until here
    say(f"{target}: {len(found)} files. Check it before you share it.")


async def _fetch_all(client: AsyncClient) -> dict[str, str]:
    from leaseway.sdk.operators import observe

    servers = await servers_in_view(client)
    found = {
        "status.json": _json(await client.status()),
        "servers.json": _json(servers),
        "workers.json": _json(await client.workers()),
        "leases.json": _json(await client.leases()),
        "problems.json": _json(await client.problems()),
    }
    events = await observe.fetch_events(client)
    found["events.jsonl"] = "".join(json.dumps(plain(event)) + "\n" for event in events)
    for selection in get_args(CallSelection):
        calls, _silent = await observe.fetch_calls(client, selection, limit=200)
        found[f"calls-{selection}.json"] = _json(calls)
    found["traffic.json"] = _json(await observe.fetch_traffic(client))
    for server_id in sorted({server.id for server in servers})[:_MAX_LOGS]:
        found[f"logs/{server_id}.txt"] = await _log(client, server_id)
    return found


async def _log(client: AsyncClient, server_id: str) -> str:
    from leaseway.sdk import LeasewayError

    try:
        logs = await client.logs(server_id, 100)
    except LeasewayError as error:
        return f"{error}\n"
    return "".join(
        f"== {log.instance_id or 'worker'} on {log.worker} ({log.state})\n"
        + "".join(f"{line}\n" for line in log.lines)
        for log in logs
    )


def _versions() -> dict[str, Any]:
    return {
        "taken_at": datetime.now(UTC),
        "package_version": PACKAGE_VERSION,
        "protocol_version": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _configuration(words: tuple[str, ...]) -> str:
    """Return the effective configuration, without literal values that may be credentials."""
    from leaseway.cli.options.config import existing_sources
    from leaseway.control_plane.config.effective import effective_values
    from leaseway.control_plane.config.loading import load_sources

    sources = existing_sources(words)
    parsed = load_sources(sources)
    issues = [str(issue) for issue in parsed.issues]
    values = [] if parsed.broken else effective_values(parsed, sources)
    rows = [plain(value) for value in values]
    for row in rows:
        parts = str(row.get("key", "")).split(".")
        is_text = isinstance(row.get("value"), str)
        if is_text and ({"env", "headers"} & set(parts) or looks_secret(parts[-1])):
            row["value"] = _HIDDEN
        if "security" in parts and isinstance(row.get("value"), dict):
            row["value"] = {**row["value"], "value": _hidden(row["value"].get("value"))}
    return _json({"issues": issues, "values": rows})


def _hidden(value: object) -> object:
    """Return a reference as it is, and a literal hidden."""
    return _HIDDEN if isinstance(value, str) else value


def _page(url: str) -> str:
    from leaseway.wire.channels.fetching import FetchError, request

    if urlsplit(url).scheme not in ("http", "https"):
        raise CliFailure(f"{url} is not an http:// or https:// URL.", USAGE)
    key = shared_key()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        answer = request(
            url, limit=_MAX_PAGE, timeout=_PAGE_TIMEOUT, configured=[url], headers=headers
        )
    except FetchError as error:
        raise CliFailure(f"Can't read the metrics at {url}: {error}.", FAILED) from None
    if answer.status != HTTPStatus.OK:
        reason = f"it responds with HTTP status {answer.status}"
        raise CliFailure(f"Can't read the metrics at {url}: {reason}.", FAILED)
    return answer.body.decode("utf-8", "replace")


def _hide_environment() -> Hidden:
    """Redact secrets of this process's environment, as long as the returned object is kept."""
    secret = re.compile(r"(?i)key|token|secret|password|passwd|credential")
    return hide(value for name, value in os.environ.items() if secret.search(name) and value)


def redacted(text: str) -> str:
    """Return a text without values that look like credentials."""
    text = redact(text)
    text = _IN_URL.sub(rf"\1{_HIDDEN}@", text)
    text = _TOKEN.sub(_HIDDEN, text)
    return _CREDENTIAL.sub(rf"\1{_HIDDEN}", text)


def _json(value: Any) -> str:
    return json.dumps(plain(value), indent=1) + "\n"


def _write(target: Path, found: dict[str, str]) -> None:
    try:
        with tarfile.open(target, "w:gz") as archive:
            for name, text in sorted(found.items()):
                body = redacted(text).encode("utf-8", "replace")
                entry = tarfile.TarInfo(f"leaseway-dump/{name}")
                entry.size, entry.mtime, entry.mode = len(body), int(time.time()), 0o600
                archive.addfile(entry, io.BytesIO(body))
    except OSError as error:
        raise CliFailure(f"Can't write {target}: {error.strerror}.", FAILED) from None

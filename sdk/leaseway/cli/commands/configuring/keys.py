"""`leaseway key`: the file of API keys, one for each service, which planes check callers by."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from leaseway.cli.errors import FAILED, USAGE, CliFailure
from leaseway.cli.options.common import examples, json_option
from leaseway.cli.output.tables import print_json, print_table, say
from leaseway.identity.keys import (
    DEFAULT_KEY_FILE,
    KEYS_VARIABLE,
    KeyFileError,
    KeyRecord,
    add_key,
    make_key,
    read_key_file,
    revoke_key,
)
from leaseway.identity.principal import Role

_DAY: Final = 86_400.0

_file_option = click.option(
    "--keys",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=KEYS_VARIABLE,
    show_envvar=True,
    default=DEFAULT_KEY_FILE,
    show_default=True,
    callback=lambda _ctx, _param, value: value.expanduser(),
    help="The file of keys.",
)


@click.group()
def key() -> None:
    """Make, list and revoke API keys.

    The planes take them where they are started with --keys FILE. The file holds salted hashes:
    nobody can show a key again.
    """


@key.command(
    epilog=examples(
        "leaseway key create --tenant acme --agent billing",
        "leaseway key create --role operator --note 'on call'",
    )
)
@click.option("--tenant", help="Whose calls it may make.")
@click.option("--agent", help="Which agent of the tenant it is, if it is of one.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([role.value for role in Role]),
    help="What it may ask for; caller by default. Several are allowed.",
)
@click.option("--days", type=click.FloatRange(0, 36_500, min_open=True), help="When it ends.")
@click.option("--note", default="", help="What it is for.")
@_file_option
def create(
    tenant: str | None,
    agent: str | None,
    roles: tuple[str, ...],
    days: float | None,
    note: str,
    path: Path,
) -> None:
    """Make a key and print it, this once.

    Whoever has it sets LEASEWAY_KEY to it.
    """
    now = time.time()
    with _sentences():
        try:
            made, record = make_key(
                roles=[Role(role) for role in roles] or [Role.CALLER],
                tenant=tenant,
                agent=agent,
                now=now,
                expires_at=None if days is None else now + days * _DAY,
                note=note,
            )
        except ValueError as error:
            raise CliFailure(str(error), USAGE) from None
        add_key(path, record)
    say(made)
    say(
        f"leaseway: Key {record.id} is in {path}, as a hash. This is the only time that it is "
        "shown.",
        err=True,
    )


@key.command("list")
@json_option
@_file_option
def list_(as_json: bool, path: Path) -> None:
    """List the keys by their ids; what they are is stored nowhere."""
    now = time.time()
    with _sentences():
        records = read_key_file(path)
    if as_json:
        print_json([_described(record, now) for record in records.values()])
        return
    rows = [
        (
            record.id,
            record.tenant or "-",
            record.agent or "-",
            ",".join(sorted(record.roles)),
            record.state(now),
            record.created_at,
            _moment(record.expires_at) or "never",
            record.note,
        )
        for record in records.values()
    ]
    names = ("ID", "TENANT", "AGENT", "ROLES", "STATE", "MADE", "ENDS", "NOTE")
    print_table(names, rows, f"{path} holds no keys.")


@key.command(epilog=examples("leaseway key revoke 4kz2m7qa"))
@click.argument("key_id", metavar="ID")
@click.option("--forget", is_flag=True, help="Remove its record as well.")
@_file_option
def revoke(key_id: str, forget: bool, path: Path) -> None:
    """Revoke the key ID, within about a second, also for streams that are open."""
    with _sentences():
        revoke_key(path, key_id, time.time(), forget=forget)
    say(f"Key {key_id} is revoked.")


def _described(record: KeyRecord, now: float) -> dict[str, object]:
    return {
        "id": record.id,
        "tenant": record.tenant,
        "agent": record.agent,
        "roles": sorted(record.roles),
        "state": record.state(now),
        "created_at": record.created_at,
        "expires_at": _moment(record.expires_at) or None,
        "revoked_at": record.revoked_at or None,
        "note": record.note,
    }


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except KeyFileError as error:
        raise CliFailure(str(error), FAILED) from None

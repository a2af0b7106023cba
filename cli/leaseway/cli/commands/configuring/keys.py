"""`leaseway key`: the file of API keys that planes accept."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from leaseway.cli.errors import USAGE, CliFailure, as_failure
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
    help="The key file.",
)


@click.group()
def key() -> None:
    """Create, list and revoke API keys.

    The planes accept them if they are started with --keys FILE. The file contains salted hashes, so
    that a key cannot be printed again.
    """


@key.command(
    epilog=examples(
        "leaseway key create --tenant acme --agent billing",
        "leaseway key create --role operator --note 'on call'",
    )
)
@click.option("--tenant", help="The tenant of the key's calls.")
@click.option("--agent", help="The agent of the key's calls; default: any.")
@click.option("--user", help="The user of the key's calls; default: none.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice([role.value for role in Role]),
    help="A role of the key; repeatable; default: caller.",
)
@click.option(
    "--days",
    type=click.FloatRange(0, 36_500, min_open=True),
    help="Days until the key expires; default: never.",
)
@click.option("--note", default="", help="A description of the key.")
@_file_option
def create(
    tenant: str | None,
    agent: str | None,
    user: str | None,
    roles: tuple[str, ...],
    days: float | None,
    note: str,
    path: Path,
) -> None:
    """Create a key and print it once.

    To use it, set LEASEWAY_KEY to it.
    """
    now = time.time()
    with as_failure(KeyFileError):
        try:
            new_key, record = make_key(
                roles=[Role(role) for role in roles] or [Role.CALLER],
                tenant=tenant,
                agent=agent,
                user=user,
                now=now,
                expires_at=None if days is None else now + days * _DAY,
                note=note,
            )
        except ValueError as error:
            raise CliFailure(str(error), USAGE) from None
        add_key(path, record)
    say(new_key)
    say(
        f"leaseway: Key {record.id} is stored in {path} as a hash. It is not shown again.",
        err=True,
    )


@key.command("list")
@json_option
@_file_option
def list_(as_json: bool, path: Path) -> None:
    """List the ids of the keys; the keys themselves are not stored."""
    now = time.time()
    with as_failure(KeyFileError):
        records = read_key_file(path)
    if as_json:
        print_json([_record_json(record, now) for record in records.values()])
        return
    rows = [
        (
            record.id,
            record.tenant or "-",
            record.agent or "-",
            record.user or "-",
            ",".join(sorted(record.roles)),
            record.state(now),
            record.created_at,
            _moment(record.expires_at) or "never",
            record.note,
        )
        for record in records.values()
    ]
    names = ("ID", "TENANT", "AGENT", "USER", "ROLES", "STATE", "MADE", "ENDS", "NOTE")
    print_table(names, rows, f"{path} contains no keys.")


@key.command(epilog=examples("leaseway key revoke 4kz2m7qa"))
@click.argument("key_id", metavar="ID")
@click.option("--forget", is_flag=True, help="Also remove its record.")
@_file_option
def revoke(key_id: str, forget: bool, path: Path) -> None:
    """Revoke the key ID, within about a second, also for open streams."""
    with as_failure(KeyFileError):
        revoke_key(path, key_id, time.time(), forget=forget)
    say(f"Key {key_id} is revoked.")


def _record_json(record: KeyRecord, now: float) -> dict[str, object]:
    return {
        "id": record.id,
        "tenant": record.tenant,
        "agent": record.agent,
        "user": record.user,
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

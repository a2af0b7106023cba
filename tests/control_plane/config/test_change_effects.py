"""What a change of each key does to a running server of each kind, as a golden table.

`changes/specs.yaml` has the servers, `changes/values.yaml` the values that each key is changed to,
and `changes/effects.txt` what follows. Run this module to write the table anew, and read its diff:
a line that becomes `restarts` is an edit that ends leases.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
import yaml
from tests.control_plane.config.parsing import parse

from leaseway.control_plane.config.schema.keys import SERVER_KEYS
from leaseway.spec.filters.names import NameFilter
from leaseway.spec.kinds.table import TRANSPORTS
from leaseway.spec.kinds.transports import registered_transports
from leaseway.spec.model import ServerSpec, VariantKey
from leaseway.spec.policy import (
    NO_POLICY,
    ArgumentRule,
    CallLimits,
    Grant,
    Permissions,
    Rate,
    ServerPolicy,
    TenantLimits,
)

CHANGES: Final = Path(__file__).parent / "changes"
GOLDEN: Final = CHANGES / "effects.txt"
ENTRIES: Final[Mapping[str, dict[str, Any]]] = yaml.safe_load((CHANGES / "specs.yaml").read_text())
VALUES: Final[Mapping[str, list[Any]]] = yaml.safe_load((CHANGES / "values.yaml").read_text())
OF_OTHER_PLACES: Final[Mapping[str, dict[str, Any]]] = {
    "confined_files": {"confined_files": {"/run/a": ("/run/*",)}},
    "grants to nobody": {"policy": ServerPolicy(grants={})},
    "grant of a tenant": {"policy": ServerPolicy(grants={"t": Grant()})},
    "grant of tools": {"policy": ServerPolicy(grants={"t": Grant(NameFilter(("a*",)))})},
    "grant of an agent": {"policy": ServerPolicy(grants={"t": Grant(agents={"x": None})})},
    "grant of permissions": {
        "policy": ServerPolicy(grants={"t": Grant(permissions=Permissions(write=False))})
    },
    "limit of calls": {"policy": ServerPolicy(limits={"t": TenantLimits(Rate(1, 60.0))})},
    "limit of an agent": {
        "policy": ServerPolicy(agent_limits={"t": {"x": CallLimits(concurrent=1)}})
    },
    "limit of leases": {"policy": ServerPolicy(limits={"t": TenantLimits(leases=1)})},
    "weight": {"policy": ServerPolicy(limits={"t": TenantLimits(weight=2)})},
    "rule": {"policy": ServerPolicy(rules=(ArgumentRule("tool == 'a'", ("a*",)),))},
    "filter of a layer": {"tools": NameFilter(also=NameFilter(("a*",)))},
}
"""Changes that come from `tenants:`, from layers or need a library: fields of the spec."""


@pytest.fixture(autouse=True)
def pigeons(tmp_path: Path) -> Iterator[None]:
    """Install a package that registers a transport."""
    with installed_pigeons(tmp_path):
        yield


@contextmanager
def installed_pigeons(folder: Path) -> Iterator[None]:
    metadata = folder / "pigeons-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeons\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[leaseway.transports]\ncarrier-pigeon = p:fly\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        registered_transports.cache_clear()
        yield
    registered_transports.cache_clear()


def test_each_change_of_a_key_does_to_a_server_what_the_table_says() -> None:
    written = table()
    assert written == GOLDEN.read_text(encoding="utf-8"), f"changed: see {GOLDEN}"


def test_the_table_has_every_key_and_every_transport() -> None:
    assert set(VALUES) == set(SERVER_KEYS) - {"openapi"}  # whose operations become `http_tools`
    assert {entry["transport"] for entry in ENTRIES.values()} > set(TRANSPORTS)
    assert len(ENTRIES) >= 50
    unused = {name for name, entry in ENTRIES.items() if spec_of(json.dumps(entry)) is None}
    assert not unused


def table() -> str:
    """Return the table: one line for each change, with the servers of each effect.

    An effect that all servers have which accept the change is written with their number.
    """
    of_keys = [
        line(f"{key}: {json.dumps(value, ensure_ascii=False)}", set_key(key, value))
        for key, values in VALUES.items()
        for value in values
    ]
    of_fields = [line(name, set_fields(fields)) for name, fields in OF_OTHER_PLACES.items()]
    return "\n".join(of_keys + of_fields) + "\n"


def line(change: str, effects: Mapping[str, list[str]]) -> str:
    assert effects, f"No server accepts the change {change!r}."
    total = sum(map(len, effects.values()))
    parts: list[str] = []
    for effect, names in sorted(effects.items(), key=lambda item: (-len(item[1]), item[0])):
        if not parts:
            parts.append(f"{effect} {len(names)} of {total}")
        else:
            parts.append(f"{effect} {' '.join(names)}")
    return f"{change}\n    {'; '.join(parts)}"


def set_key(key: str, value: Any) -> dict[str, list[str]]:
    """Return the servers by what happens if a key is set to a value."""
    effects: dict[str, list[str]] = {}
    for name, entry in ENTRIES.items():
        if not SERVER_KEYS[key].is_for(entry["transport"]):
            continue
        before = spec_of(json.dumps(entry))
        changed = json.dumps(entry | {key: value})
        after = None if value is False and key == "enabled" else spec_of(changed)
        assert before is not None, name
        if after is not None or key == "enabled":
            effects.setdefault(effect(before, after), []).append(name)
    return effects


def set_fields(fields: Mapping[str, Any]) -> dict[str, list[str]]:
    effects: dict[str, list[str]] = {}
    for name, entry in ENTRIES.items():
        before = spec_of(json.dumps(entry))
        assert before is not None, name
        if "policy" in fields and before.policy != NO_POLICY:
            continue
        effects.setdefault(effect(before, replace(before, **fields)), []).append(name)
    return effects


def effect(before: ServerSpec, after: ServerSpec | None) -> str:
    if after is None:
        return "removes"
    if before.launch_hash != after.launch_hash:
        return "restarts"
    return "relists" if before.exposure_hash != after.exposure_hash else "nothing"


@cache
def spec_of(entry: str) -> ServerSpec | None:
    """Return the spec of an entry, or None if it is refused."""
    parsed = parse(json.dumps({"version": 1, "servers": {"s": json.loads(entry)}}), "mcp.yaml")
    return parsed.servers.get(VariantKey("s"))


if __name__ == "__main__":
    with TemporaryDirectory() as metadata_folder, installed_pigeons(Path(metadata_folder)):
        GOLDEN.write_text(table(), encoding="utf-8")

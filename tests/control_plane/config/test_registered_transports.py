"""Transports that packages register in the control plane's environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest
from tests.control_plane.config.parsing import parse_server

from leaseway.control_plane.config.schema.keys import native_schema
from leaseway.spec.kinds.table import TRANSPORTS
from leaseway.spec.kinds.transports import is_known, known_transports, registered_transports
from leaseway.spec.model import VariantKey

ENTRIES = "[leaseway.transports]\ncarrier-pigeon = pigeons:fly\nstdio = pigeons:fly\n"


@pytest.fixture(autouse=True)
def pigeons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install a package that registers a transport; its module is not even there."""
    metadata = tmp_path / "pigeons-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeons\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)
    registered_transports.cache_clear()
    yield
    registered_transports.cache_clear()


@pytest.mark.parametrize(
    "body",
    [
        "transport: carrier-pigeon",
        "transport: carrier-pigeon, url: 'pigeon://tower/3'",
        "transport: carrier-pigeon, command: coo, args: [a], env: {A: {env: B}}",
        "transport: carrier-pigeon, headers: {A: b}, sessionId: x, protocol: legacy, warm: 1",
    ],
)
def test_a_registered_transport_takes_the_keys_that_reach_it_and_needs_none(body: str) -> None:
    parsed = parse_server(body)
    assert parsed.issues == ()
    assert parsed.servers[VariantKey("s")].transport == "carrier-pigeon"


@pytest.mark.parametrize("key", ["sandbox: true", "limits: {cpu: 1}", "inherit_env: all"])
def test_what_leaseway_could_not_keep_is_refused_for_a_registered_transport(key: str) -> None:
    (issue,) = parse_server(f"transport: carrier-pigeon, {key}").issues
    assert (issue.severity, issue.reason) == ("error", "KEY_NOT_FOR_TRANSPORT")


def test_unknown_keys_are_errors_with_a_registered_transport_too() -> None:
    (issue,) = parse_server("transport: carrier-pigeon, commmand: coo").issues
    assert issue.reason == "UNKNOWN_KEY"
    assert "did you mean 'command'?" in issue.message


def test_a_misspelt_registered_name_is_an_error_of_that_server_that_names_it() -> None:
    (issue,) = parse_server("transport: carrier-pidgeon").issues
    assert issue.reason == "UNSUPPORTED_TRANSPORT"
    assert issue.message == "'carrier-pidgeon' is not a transport: did you mean 'carrier-pigeon'?"


def test_credentials_in_the_url_of_a_registered_transport_are_refused() -> None:
    (issue,) = parse_server("transport: carrier-pigeon, url: 'pigeon://me:pw@tower'").issues
    assert "contains credentials" in issue.message


def test_a_built_in_name_cannot_be_registered_anew() -> None:
    assert list(registered_transports()) == ["carrier-pigeon"]
    assert known_transports() == (*TRANSPORTS, "carrier-pigeon")
    assert is_known("carrier-pigeon")


def test_the_schema_knows_what_is_registered() -> None:
    validator = jsonschema_rs.validator_for(native_schema())
    file = {"version": 1, "servers": {"s": {"transport": "carrier-pigeon", "url": "pigeon://t"}}}
    assert validator.is_valid(file)
    file["servers"]["s"]["sandbox"] = True  # type: ignore[index]
    assert not validator.is_valid(file)

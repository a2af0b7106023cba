"""Settings of sinks, from variables and files."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.vaults import QUICK_SCRYPT

from leaseway.data_plane.audit.sinks.port import SinkError
from leaseway.data_plane.audit.sinks.settings import SinkSettings
from leaseway.data_plane.references.vault import WorkerVault, sink_settings
from leaseway.vault import file
from leaseway.vault.key import VaultPlace


def test_a_setting_is_in_its_variable_or_in_the_file_that_one_names(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("from-a-file\n")
    environment = {
        "LEASEWAY_AUDIT_AWS_REGION": "eu",
        "LEASEWAY_AUDIT_AWS_SECRET_ACCESS_KEY_FILE": str(secret),
        "LEASEWAY_AUDIT_AWS_WEB_IDENTITY_TOKEN_FILE": "/a/path",
        "LEASEWAY_AUDIT_NATS_USER": "other",
        "AWS_REGION": "us",
    }
    assert SinkSettings(environment).of("AWS_") == {
        "region": "eu",
        "secret_access_key": "from-a-file",
        "web_identity_token_file": "/a/path",
    }


@pytest.mark.parametrize("content", [None, b"\xff", b"x" * 65_537])
def test_a_file_that_cannot_be_used_is_named_by_its_variable(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SinkError, match="LEASEWAY_AUDIT_NATS_PASSWORD_FILE"):
        SinkSettings({"LEASEWAY_AUDIT_NATS_PASSWORD_FILE": str(path)}).of("NATS_")


def test_a_setting_is_a_secret_where_those_of_servers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_SCRYPT", QUICK_SCRYPT)
    vault = WorkerVault(place := VaultPlace(tmp_path / "vault", tmp_path / "key"))
    file.set_secret(place, "nats-password", "from-the-vault")
    vault.refresh()
    environment = {
        "LEASEWAY_AUDIT_NATS_PASSWORD_SECRET": "nats-password",
        "LEASEWAY_AUDIT_NATS_USER_SECRET": "NATS_USER",
        "NATS_USER": "from-the-environment",
    }
    assert sink_settings(environment, vault).of("NATS_") == {
        "password": "from-the-vault",
        "user": "from-the-environment",
    }
    file.set_secret(place, "nats-password", "replaced-since")
    assert sink_settings(environment, vault).of("NATS_")["password"] == "replaced-since"
    missing = {"LEASEWAY_AUDIT_NATS_PASSWORD_SECRET": "other"}
    with pytest.raises(SinkError, match=r"PASSWORD_SECRET refers to .* leaseway vault set other"):
        sink_settings(missing, vault).of("NATS_")
    twice = {**environment, "LEASEWAY_AUDIT_NATS_PASSWORD": "plain"}
    with pytest.raises(SinkError, match="LEASEWAY_AUDIT_NATS_PASSWORD is set twice"):
        sink_settings(twice, vault).of("NATS_")

"""Settings of sinks, from variables and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from leaseway.data_plane.audit.sinks.port import SinkError
from leaseway.data_plane.audit.sinks.settings import own_settings


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
    assert own_settings(environment, "AWS_") == {
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
        own_settings({"LEASEWAY_AUDIT_NATS_PASSWORD_FILE": str(path)}, "NATS_")

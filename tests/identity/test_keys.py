"""API keys: stored as hashes, valid until they are revoked or expire."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.identity.keys import (
    KeyFileError,
    add_key,
    make_key,
    parse_keys,
    principal_for_key,
    read_key_file,
    revoke_key,
)
from leaseway.identity.principal import Role

NOW = 1_800_000_000.0


def add(path: Path, **more: object) -> str:
    key, record = make_key(
        **{"roles": [Role.CALLER], "tenant": "acme", "agent": None, "now": NOW, **more}  # type: ignore[arg-type]
    )
    add_key(path, record)
    return key


def test_a_key_has_a_tenant_an_agent_and_roles(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add(path, agent="billing")
    principal = principal_for_key(read_key_file(path), key, NOW)
    assert principal is not None
    assert (principal.tenant, principal.agent, set(principal.roles)) == (
        "acme",
        "billing",
        {Role.CALLER},
    )
    assert principal.name == f"key {key[4:12]}"


def test_a_key_may_be_of_a_user(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path, user="anna")
    key = add(path, user="bob")
    principal = principal_for_key(read_key_file(path), key, NOW)
    assert principal is not None
    assert principal.user == "bob"
    assert principal.user_for("") == principal.user_for("bob") == "bob"
    with pytest.raises(ValueError, match="omit the user"):
        add(path, user="anna", roles=[Role.CALLER, Role.DELEGATE])
    with pytest.raises(ValueError, match="name the tenant"):
        add(path, user="anna", roles=[Role.OPERATOR], tenant=None)


def test_the_file_never_contains_the_secret_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add(path)
    secret = key.split("_", 2)[2]
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_keys_have_different_salts(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path)
    add(path)
    salts = [entry["salt"] for entry in json.loads(path.read_text())["keys"]]
    assert len(set(salts)) == 2


def test_a_revoked_key_is_invalid_and_stays_listed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add(path)
    revoke_key(path, key[4:12], NOW)
    keys = read_key_file(path)
    assert principal_for_key(keys, key, NOW) is None
    assert [record.state(NOW) for record in keys.values()] == ["revoked"]
    revoke_key(path, key[4:12], NOW, forget=True)
    assert read_key_file(path) == {}


def test_a_key_is_valid_until_it_expires(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = add(path, expires_at=NOW + 10)
    keys = read_key_file(path)
    assert principal_for_key(keys, key, NOW + 9.9) is not None
    assert principal_for_key(keys, key, NOW + 10) is None


def test_revoking_an_unknown_key_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="has no key nobody"):
        revoke_key(tmp_path / "keys.json", "nobody", NOW)


@pytest.mark.parametrize(
    ("roles", "tenant", "message"),
    [
        ([Role.CALLER], None, "needs a tenant"),
        ([Role.OPERATOR], "acme", "has no tenant"),
        ([Role.VIEWER], "acme", "has no tenant"),
        ([], "acme", "needs a role"),
        ([Role.CALLER], "a\nb", "control characters"),
    ],
)
def test_an_inconsistent_key_is_rejected(
    roles: list[Role], tenant: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_key(roles=roles, tenant=tenant, agent=None, now=NOW)


@given(st.text(max_size=80))
def test_no_other_credential_is_a_valid_key(credential: str) -> None:
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=NOW)
    keys = {record.id: record}
    assert principal_for_key(keys, f"lwk_{credential}", NOW) is None
    assert principal_for_key(keys, key[:13] + credential, NOW) is None
    assert principal_for_key(keys, key, NOW) is not None


@given(st.one_of(st.binary(max_size=200), st.from_type(dict).map(lambda x: repr(x).encode())))
def test_arbitrary_content_is_rejected_with_the_file_name(content: bytes) -> None:
    with pytest.raises(KeyFileError, match=r"keys\.json"):
        parse_keys(content, "keys.json")


def test_an_invalid_record_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path)
    document = json.loads(path.read_text())
    document["keys"].append({"id": "x", "roles": ["king"], "salt": "00", "hash": "00"})
    with pytest.raises(KeyFileError, match="Entry 2"):
        parse_keys(json.dumps(document).encode(), "keys.json")


@pytest.mark.parametrize(
    ("misspelt", "known"),
    [("revoked", "revoked_at"), ("expires", "expires_at"), ("tenat", "tenant")],
)
def test_a_member_that_no_record_has_is_refused_with_the_nearest(
    tmp_path: Path, misspelt: str, known: str
) -> None:
    path = tmp_path / "keys.json"
    add(path)
    document = json.loads(path.read_text())
    document["keys"][0][misspelt] = "2026-01-01"
    with pytest.raises(KeyFileError, match=f"Entry 1 of .*'{misspelt}'.* Did you mean '{known}'"):
        parse_keys(json.dumps(document).encode(), "keys.json")

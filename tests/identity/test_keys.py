"""API keys: made once, stored as hashes, good until they are revoked or expire."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseway.identity.keys import (
    KeyFileError,
    add_key,
    check_key,
    make_key,
    parse_keys,
    read_key_file,
    revoke_key,
)
from leaseway.identity.principal import Role

NOW = 1_800_000_000.0


def made(path: Path, **more: object) -> str:
    key, record = make_key(
        **{"roles": [Role.CALLER], "tenant": "acme", "agent": None, "now": NOW, **more}  # type: ignore[arg-type]
    )
    add_key(path, record)
    return key


def test_a_key_leads_to_its_tenant_agent_and_roles(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = made(path, agent="billing")
    who = check_key(read_key_file(path), key, NOW)
    assert who is not None
    assert (who.tenant, who.agent, set(who.roles)) == ("acme", "billing", {Role.CALLER})
    assert who.name == f"key {key[4:12]}"


def test_the_file_never_holds_the_secret_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = made(path)
    secret = key.split("_", 2)[2]
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_keys_have_salts_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made(path)
    made(path)
    salts = [entry["salt"] for entry in json.loads(path.read_text())["keys"]]
    assert len(set(salts)) == 2


def test_a_revoked_key_is_not_good_and_stays_listed(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = made(path)
    revoke_key(path, key[4:12], NOW)
    keys = read_key_file(path)
    assert check_key(keys, key, NOW) is None
    assert [record.state(NOW) for record in keys.values()] == ["revoked"]
    revoke_key(path, key[4:12], NOW, forget=True)
    assert read_key_file(path) == {}


def test_a_key_is_good_until_the_second_in_which_it_expires(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    key = made(path, expires_at=NOW + 10)
    keys = read_key_file(path)
    assert check_key(keys, key, NOW + 9.9) is not None
    assert check_key(keys, key, NOW + 10) is None


def test_revoking_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="has no key nobody"):
        revoke_key(tmp_path / "keys.json", "nobody", NOW)


@pytest.mark.parametrize(
    ("roles", "tenant", "says"),
    [
        ([Role.CALLER], None, "needs a tenant"),
        ([Role.OPERATOR], "acme", "of no tenant"),
        ([Role.VIEWER], "acme", "of no tenant"),
        ([], "acme", "needs a role"),
        ([Role.CALLER], "a\nb", "control characters"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(
    roles: list[Role], tenant: str | None, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        make_key(roles=roles, tenant=tenant, agent=None, now=NOW)


@given(st.text(max_size=80))
def test_whatever_else_is_sent_is_no_key(credential: str) -> None:
    key, record = make_key(roles=[Role.CALLER], tenant="acme", agent=None, now=NOW)
    keys = {record.id: record}
    assert check_key(keys, f"lwk_{credential}", NOW) is None
    assert check_key(keys, key[:13] + credential, NOW) is None
    assert check_key(keys, key, NOW) is not None


@given(st.one_of(st.binary(max_size=200), st.from_type(dict).map(lambda x: repr(x).encode())))
def test_whatever_a_file_holds_it_is_read_or_refused_in_a_sentence(content: bytes) -> None:
    with pytest.raises(KeyFileError, match=r"keys\.json"):
        parse_keys(content, "keys.json")


def test_one_record_that_is_none_refuses_the_file_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made(path)
    document = json.loads(path.read_text())
    document["keys"].append({"id": "x", "roles": ["king"], "salt": "00", "hash": "00"})
    with pytest.raises(KeyFileError, match="Entry 2"):
        parse_keys(json.dumps(document).encode(), "keys.json")

"""The names of principals of tokens: MCP sessions and listed leases belong to a name."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, Final

from leaseway.identity.settings import read_identity_file
from leaseway.identity.tokens import Issuer, principal_from_claims

ONE: Final = Issuer("https://one.example", ("leaseway",), "keys.json")
CLAIMS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"sub": "ann"},
    {"sub": "x" * 200},
    {"sub": "x" * 199 + "y"},
    {"sub": "a\nb"},
    {"sub": "a\tb"},
    {"sub": "", "client_id": "ann"},
    {"azp": "bob"},
    {"sub": "client bob"},
)


def name(issuer: Issuer, claims: dict[str, Any]) -> str:
    return principal_from_claims(issuer, {**claims, "tenant": "acme"}).name


def test_two_subjects_never_have_one_name() -> None:
    names = [name(ONE, claims) for claims in CLAIMS]
    assert names[1] == "token ann"
    assert all(text.isprintable() and len(text) < 200 for text in names)
    said = [{"sub": text.removeprefix("token ")} for text in names]
    others = [name(ONE, claims) for claims in said if claims not in CLAIMS]
    assert len({*names, *others}) == len(names) + len(others) - 1  # "no subject" may be one


def test_equal_subjects_of_several_issuers_have_different_names(tmp_path: Path) -> None:
    path = tmp_path / "identity.toml"
    tables = [
        f'[[jwt]]\nissuer = "https://{host}.example"\naudience = "leaseway"\njwks = "keys.json"\n'
        for host in ("one", "two")
    ]
    path.write_text("".join(tables))
    issuers = read_identity_file(path).issuers
    names = {name(issuer, claims) for issuer, claims in product(issuers, CLAIMS)}
    assert len(names) == 2 * len(CLAIMS)
    path.write_text(tables[0])
    (issuer,) = read_identity_file(path).issuers
    assert name(issuer, {"sub": "ann"}) == "token ann"

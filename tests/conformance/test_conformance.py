"""The official conformance suite against the client of the worker.

`make conformance` installs the suite and a Node that runs it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from tests.conformance.client import command
from tests.conformance.conftest import Suite, marked
from tests.conftest import BOUND

HERE = Path(__file__).parent
EXPECTED: dict[str, dict[str, list[str]]] = yaml.safe_load(
    (HERE / "expected-failures.yaml").read_text()
)
EXTENSIONS = (
    "auth/client-credentials-jwt",
    "auth/client-credentials-basic",
    "auth/enterprise-managed-authorization",
    "auth/dpop",
    "auth/dpop-nonce",
    "auth/wif-jwt-bearer",
)
CLIENT_SCENARIOS = [
    ("2025-11-25", "initialize"),
    ("2025-11-25", "tools_call"),
    ("2025-11-25", "elicitation-sep1034-client-defaults"),
    ("2025-11-25", "sse-retry"),
    ("2026-07-28", "tools_call"),
    ("2026-07-28", "request-metadata"),
    ("2026-07-28", "sep-2322-client-request-state"),
    ("2026-07-28", "http-standard-headers"),
    ("2026-07-28", "http-custom-headers"),
    ("2026-07-28", "http-invalid-tool-headers"),
    ("2026-07-28", "json-schema-ref-no-deref"),
    ("2026-07-28", "json-schema-2020-12-preservation"),
    *(
        (version, f"auth/{name}")
        for version in ("2025-11-25", "2026-07-28")
        for name in (
            "metadata-default",
            "metadata-var1",
            "metadata-var2",
            "metadata-var3",
            "basic-cimd",
            "scope-from-www-authenticate",
            "scope-from-scopes-supported",
            "scope-omitted-when-undefined",
            "scope-step-up",
            "scope-retry-limit",
            "token-endpoint-auth-basic",
            "token-endpoint-auth-post",
            "token-endpoint-auth-none",
            "pre-registration",
        )
    ),
    *(
        ("2026-07-28", f"auth/{name}")
        for name in (
            "resource-mismatch",
            "offline-access-scope",
            "offline-access-not-supported",
            "authorization-server-migration",
            "iss-supported",
            "iss-not-advertised",
            "iss-supported-missing",
            "iss-wrong-issuer",
            "iss-unexpected",
            "iss-normalized",
            "metadata-issuer-mismatch",
        )
    ),
    ("2025-03-26", "auth/2025-03-26-oauth-metadata-backcompat"),
    ("2025-03-26", "auth/2025-03-26-oauth-endpoint-fallback"),
    *(
        (f"{version} --force", scenario)
        for version in ("2025-11-25", "2026-07-28")
        for scenario in EXTENSIONS
    ),
]


CROSS_SECTION = {
    ("2025-11-25", "initialize"),
    ("2025-11-25", "sse-retry"),
    ("2026-07-28", "request-metadata"),
    ("2026-07-28", "sep-2322-client-request-state"),
    ("2026-07-28", "http-custom-headers"),
    ("2026-07-28", "json-schema-2020-12-preservation"),
    ("2025-03-26", "auth/2025-03-26-oauth-metadata-backcompat"),
    ("2025-11-25", "auth/metadata-var3"),
    ("2025-11-25", "auth/token-endpoint-auth-post"),
    ("2026-07-28", "auth/basic-cimd"),
    ("2026-07-28", "auth/scope-step-up"),
    ("2026-07-28", "auth/authorization-server-migration"),
    ("2026-07-28", "auth/iss-normalized"),
    ("2026-07-28", "auth/iss-wrong-issuer"),
    ("2026-07-28 --force", "auth/enterprise-managed-authorization"),
    ("2026-07-28 --force", "auth/dpop-nonce"),
    ("2026-07-28 --force", "auth/wif-jwt-bearer"),
}
"""Scenarios that run in every run: one of each kind. `make conformance` runs all."""


@pytest.mark.parametrize(("version", "scenario"), marked(CLIENT_SCENARIOS, CROSS_SECTION))
async def test_the_workers_own_client_conforms(
    tmp_path: Path, suite: Suite, version: str, scenario: str
) -> None:
    results = tmp_path / "results"
    async with command(tmp_path) as client:
        _, output = await suite.run(
            "client",
            *("--command", client),
            *("--scenario", scenario, "--spec-version", *version.split()),
            *("--timeout", str(int(3 * BOUND * 1000)), "-o", str(results)),
        )
    checks = [
        check for file in results.rglob("checks.json") for check in json.loads(file.read_text())
    ]
    failed = {check["id"] for check in checks if check["status"] == "FAILURE"}
    assert failed == set(EXPECTED["client"].get(scenario, ())), output
    assert any(check["status"] == "SUCCESS" for check in checks), output


async def test_every_client_scenario_about_authorization_is_run(suite: Suite) -> None:
    _, output = await suite.run("list")
    listed = set(re.findall(r"^ *- (auth/\S+)", output, re.MULTILINE))
    assert len(listed) > 30
    assert listed == {name for _, name in CLIENT_SCENARIOS if name.startswith("auth/")}

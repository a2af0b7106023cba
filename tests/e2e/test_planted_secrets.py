"""Servers that print their secrets in every output: no output of the system shows one."""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
from pathlib import Path

import pytest
from tests.e2e.forking import run_leaseway
from tests.e2e.system import eventually, python_server, running

from leaseway.sdk import LeasewayError
from leaseway.telemetry.trace_file import TraceCollector, otlp_environment
from leaseway.wire.secrets.secret_names import secret_forms

PLACES = ("initialize", "list", "garbage", "exit", "call")
SHAPES = (
    "sk-live-4eC39HqLyjWDarjtT1zdp7dc{}",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a{}",
    "AKIAIOSFODNN7EXAMPLE/{}",
    "xoxb-17653672481-19874698323-pdFZKVeTuE8sk7oOcHrzqqy{}",
    "postgres://app:p%40ss{}word@db.internal:5432/app",
    "https://hooks.example.com/services/T00/B00/XXyyZZ{}",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N_{}",
    "quote\"back\\slash'and <tag> & {} more",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg{}\n-----END PRIVATE KEY-----",
    "correct horse battery staple {}",
    "pässwörd-{}-ünïcode",
    "Bearer 0123456789abcdef{}",
)
"""Twelve secrets for each of the five places."""


def planted(place: str) -> dict[str, str]:
    """Return environment variables of the worker whose names do not look like secrets."""
    return {f"{place.upper()}_{n}": s.format(f"{place}{n}") for n, s in enumerate(SHAPES)}


def leaky(place: str) -> dict[str, object]:
    env = {f"PLANTED_{number}": {"env": name} for number, name in enumerate(planted(place))}
    return python_server("leaky.py", place, env=env, protocol="legacy")


async def command(address: str, *words: str) -> str:
    """Return the output of a command."""
    done = await run_leaseway(*words, environment=os.environ | {"LEASEWAY_ADDRESS": address})
    return done.stdout + done.stderr


def contents(archive: Path) -> str:
    with tarfile.open(archive) as tar:
        files = [tar.extractfile(member) for member in tar.getmembers()]
        return "\n".join(file.read().decode(errors="replace") for file in files if file)


@pytest.mark.usefixtures("leak_guard")
async def test_no_output_shows_secrets_that_servers_print(tmp_path: Path) -> None:
    secrets = {name: text for place in PLACES for name, text in planted(place).items()}
    spans, archive = tmp_path / "spans.jsonl", tmp_path / "dump.tar.gz"
    async with TraceCollector(spans) as collector:
        environment = {
            **secrets,
            **otlp_environment(collector.endpoint),
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        servers = {place: leaky(place) for place in PLACES}
        async with running(tmp_path, servers, environment=environment) as (system, client):

            async def all_have_failed() -> bool:
                failed = {server.id for server in await client.servers() if server.problem}
                return failed >= set(PLACES) - {"call"}

            await eventually(all_have_failed)
            with pytest.raises(LeasewayError) as caught:
                await client.session("talk").call_tool("tell")
            assert "[redacted]" in str(caught.value)
            shown = {
                "the caller's error": f"{caught.value} {vars(caught.value)}",
                "servers": str(await client.servers()),
                "problems": str(await client.problems()),
            }
            commands = [
                *("servers --json", "problems --json", "events --json", "status"),
                *(f"logs {place}" for place in PLACES),
                *("trace --failed", f"dump --output {archive}"),
            ]
            outputs = await asyncio.gather(
                *(command(system.address, *words.split()) for words in commands)
            )
            shown |= dict(zip(commands, outputs, strict=True))
            shown["dump"] = contents(archive)
            shown["log lines"] = system.logs()
    shown["spans"] = spans.read_text()
    assert "hidden" in shown["logs exit"]
    leaked = {
        (path, form)
        for form in secret_forms(secrets.values())
        if len(form) >= 12 and "PRIVATE KEY-----" not in form
        for path, text in shown.items()
        if form in text or form in json.dumps(text)
    }
    assert not leaked

"""Values of references are redacted from all text that leaves a worker."""

from __future__ import annotations

import base64
import html
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError
from tests.data_plane.conftest import logging_to

from leaseway.data_plane.core.problems import WorkerProblem
from leaseway.data_plane.core.resolved_values import ResolvedValues
from leaseway.data_plane.instances.reports import Reports
from leaseway.data_plane.kinds.remote.http.errors import status_fault
from leaseway.data_plane.kinds.values import resolve
from leaseway.data_plane.mcp.session import start_fault
from leaseway.data_plane.mcp.stderr import StderrTail
from leaseway.data_plane.sync.convert import REDACTED_FIELDS, UNREDACTED_MESSAGES, redact_message
from leaseway.spec.kinds.table import server_spec
from leaseway.spec.model import VariantKey
from leaseway.spec.references import Value
from leaseway.v1 import admin_pb2, sync_pb2
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.secrets.redaction import hide, redact
from leaseway.wire.status import status_from_fault

_BODIES = (
    "{}-plain-7731",
    'with "quotes" {} and \\slashes\\',
    "umlaut-{}-äöü-日本",
    "sl/ash+plus={}&and?more",
    "two words of {}",
    "<b>{}</b>&amp",
    "it's {} here",
    "tab\t{} inside",
    "percent%20{}%",
    "{}0123456789012345678901234567890123456789",
)


class Planted(NamedTuple):
    """A reference, and the secret that it resolves to."""

    value: Value
    secret: str


def _planted(files: Path) -> list[Planted]:
    """Return sixty references: six ways to name a value, ten values each."""
    found = []
    for number, body in enumerate(_BODIES):
        for kind in ("env", "secret", "file", "literal", "inside", "address"):
            name = f"PLAIN_{number}_{kind}"
            secret = body.format(f"{kind}{number}q9")
            if kind == "file":
                path = files / name
                path.write_text(secret + "\n")
                value = Value("file", str(path))
            elif kind == "literal":
                value = Value("literal", secret)
            elif kind == "inside":
                value = Value("literal", f"x-${{{name}}}")
            elif kind == "address":
                secret = quote(secret, safe="")
                value = Value("env", name)
            else:
                value = Value("secret" if kind == "secret" else "env", name)
            found.append(Planted(value, secret))
    return found


@pytest.fixture
def resolved(tmp_path: Path) -> tuple[list[str], ResolvedValues]:
    planted = _planted(tmp_path)
    environment = {
        f"PLAIN_{number}_{kind}": (
            f"postgres://me:{quote(body.format(f'{kind}{number}q9'), safe='')}@db/x"
            if kind == "address"
            else body.format(f"{kind}{number}q9")
        )
        for number, body in enumerate(_BODIES)
        for kind in ("env", "secret", "inside", "address")
    }
    env = {
        f"API_TOKEN_{i}" if place.value.kind == "literal" else f"V{i}": place.value
        for i, place in enumerate(planted)
    }
    spec = server_spec(VariantKey("srv"), "stdio", command="x", env=env)
    return [place.secret for place in planted], resolve(spec, environment)


def spellings(secret: str) -> Iterator[str]:
    """Yield the spellings in which servers may print a value."""
    yield secret
    yield json.dumps({"token": secret})
    yield json.dumps({"token": secret}, ensure_ascii=False)
    yield json.dumps(json.dumps({"token": secret}))
    yield repr({"token": secret})
    yield f"https://h/x?token={quote(secret, safe='')}&y=1"
    yield f"https://h/x?token={quote_plus(secret)}&y=1"
    yield f"https://h/{quote(secret)}/y"
    yield html.escape(secret)
    for before in ("", "u:", "me:"):
        yield "Basic " + base64.b64encode((before + secret).encode()).decode()
    yield base64.urlsafe_b64encode(secret.encode()).decode()


def leaked(text: str, secrets: list[str]) -> list[str]:
    """Return the secrets of which a text still contains the unique part."""
    marks = [(secret, _mark(secret)) for secret in secrets]
    encoded = {secret: base64.b64encode(secret.encode())[4:-4].decode() for secret in secrets}
    return [secret for secret, mark in marks if mark in text or encoded[secret] in text]


def _mark(secret: str) -> str:
    start = next(i for i in range(len(secret)) if secret[i : i + 2] == "q9") + 2
    begin = max(secret.rfind(kind, 0, start) for kind in _KINDS)
    return secret[begin:start]


_KINDS = ("env", "secret", "file", "literal", "inside", "address")


def _log(fmt: str) -> Callable[[str, Path, ResolvedValues], str]:
    def through(text: str, folder: Path, _: ResolvedValues) -> str:
        with logging_to(folder / "log", fmt):
            logging.getLogger("leaseway.planted").error("It output: %s", text, extra={"f": [text]})
            return (folder / "log").read_text()

    return through


def _stderr(text: str, _: Path, resolved: ResolvedValues) -> str:
    tail = StderrTail(resolved.secrets)
    for piece in text.split(" | "):
        tail.feed(piece.encode() + b"\n")
    return "\n".join(tail.lines())


def _error(text: str, _: Path, __: ResolvedValues) -> str:
    fault = Fault(
        Reason.SERVER_ERROR,
        f"It answered: {text}",
        metadata={"stderr": text, "data": text},
        violations=(("$.x", text),),
    )
    encoded: bytes = status_from_fault(fault).SerializeToString()
    return encoded.decode(errors="replace")


def _request(**fields: Any) -> sync_pb2.SyncRequest:
    return sync_pb2.SyncRequest(**fields)


def _sync(text: str, _: Path, __: ResolvedValues) -> str:
    messages = (
        _request(probe_result={"problem": {"message": text}}),
        _request(report={"problems": [{"message": text}], "events": [{"message": text}]}),
        _request(nack={"refusals": [{"problem": {"message": text}}]}),
        _request(inspected={"calls": [{"message": text}]}),
        _request(approval_question={"arguments": text}),
    )
    for message in messages:
        redact_message(message)
    return " ".join(
        each_message.SerializeToString().decode(errors="replace") for each_message in messages
    )


def _start(text: str, _: Path, __: ResolvedValues) -> str:
    spec = server_spec(VariantKey("srv"), "stdio", command="x")
    answered = start_fault(spec, MCPError(code=-1, message=text), "negotiate", StderrTail())
    raised = start_fault(spec, RuntimeError(text), "list", StderrTail())
    return f"{answered.message} {answered.metadata} {raised.message} {raised.metadata}"


def _problem(text: str, _: Path, __: ResolvedValues) -> str:
    reports = Reports()
    reports.report_problem(WorkerProblem("server", "X", text, VariantKey("srv")))
    return "".join(problem.message for problem in reports.problems.open)


def _refusal(text: str, _: Path, __: ResolvedValues) -> str:
    return status_fault("srv", 500, {}, body=text.encode()).message


PATHS = {
    "text logs": _log("text"),
    "JSON logs": _log("json"),
    "stderr": _stderr,
    "errors": _error,
    "Sync": _sync,
    "starts": _start,
    "problems": _problem,
    "HTTP refusals": _refusal,
}


@pytest.mark.parametrize("path", PATHS)
def test_no_planted_secret_leaves_the_worker(
    resolved: tuple[list[str], ResolvedValues], tmp_path: Path, path: str
) -> None:
    secrets, resolved_values = resolved
    assert len(secrets) == 60
    through = PATHS[path]
    for secret in secrets:
        printed = " | ".join(spellings(secret))
        assert leaked(printed, [secret]), "the test must be able to find it"
        assert not leaked(through(printed, tmp_path, resolved_values), [secret]), secret


def test_no_part_of_a_value_is_in_a_validation_error() -> None:
    class Answer(BaseModel):
        count: int

    with pytest.raises(ValidationError) as caught:
        Answer.model_validate({"count": "secret-" + "0123456789" * 20})
    spec = server_spec(VariantKey("srv"), "stdio", command="x")
    fault = start_fault(spec, caught.value, "negotiate", StderrTail())
    assert "secret-" not in fault.message
    assert "count: Input should be a valid integer" in fault.message


def test_every_text_that_a_worker_sends_is_redacted_or_known_to_be_a_name() -> None:
    names = {
        *("id", "incarnation", "address", "unix_socket", "server_id", "worker_id", "tenant"),
        *("session", "agent", "acquirer", "lease_id", "instance_id", "leases_lost", "trace_id"),
        *("package_version", "protocol_version", "launch_hash", "exposure_hash", "toolset_hash"),
        *("state", "role", "circuit", "scope", "reason", "severity", "subject", "how", "kind"),
        *("action", "tool", "method", "outcome", "name", "digest", "asked_by", "reminder"),
        *("user", "holder", "ticket", "authorization_url", "use_id", "run", "sink"),
        *("written_hash", "shipped_hash", "serves"),
        *("key", "value", "servers"),  # labels and patterns, which its operator gives a worker
    }
    seen: set[str] = set()

    def walk(kind: Any) -> None:
        if kind.full_name in seen or kind.name in UNREDACTED_MESSAGES:
            return
        seen.add(kind.full_name)
        for field in kind.fields:
            if field.type == field.TYPE_STRING:
                assert field.name in REDACTED_FIELDS | names, f"{field.full_name}: text, or a name?"
            elif field.message_type is not None:
                walk(field.message_type)

    walk(sync_pb2.SyncRequest.DESCRIPTOR)
    assert admin_pb2.Problem.DESCRIPTOR.full_name in seen


def test_a_failing_log_line_reveals_no_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    with logging_to(full):
        logging.getLogger("leaseway.planted").error("It output %s", "an-unwritten-secret")
        output = capsys.readouterr().err
    assert "an-unwritten-secret" not in output
    assert "was not written to /dev/full: No space left on device" in output


@given(st.text(min_size=12, max_size=40).filter(lambda text: not text.isspace()), st.text())
def test_a_hidden_value_is_redacted_anywhere_in_a_text(secret: str, around: str) -> None:
    kept = hide({secret})
    assert secret not in redact(around + secret + around).replace("[redacted]", "")
    del kept

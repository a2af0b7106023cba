"""Every word of a shared vocabulary has its place wherever people and programs meet it."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
from google.protobuf.descriptor import EnumDescriptor, FileDescriptor

from leaseway import v1
from leaseway.control_plane.console.records import tone
from leaseway.runbook import entries
from leaseway.sdk import Approval, InstanceInfo, ProblemInfo, ServerInfo, WorkerInfo
from leaseway.sdk.catalog.targets import NOUNS
from leaseway.v1 import catalog_pb2
from leaseway.wire.errors import Reason
from leaseway.wire.messages.budgets import QUOTAS
from leaseway.wire.messages.enums import (
    SELECTIONS,
    server_state_from_proto,
    server_state_to_proto,
)
from leaseway.wire.messages.states import VOCABULARIES, ServerState, instance_word
from leaseway.wire.sharing.limits import BudgetScope, CallQuota
from leaseway.wire.status import STARTED_FROM_WIRE

_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "control_plane/leaseway/control_plane/console/page"
_PLACES: dict[str, list[str | type]] = {
    "ServerState": [ServerInfo],
    "WorkerState": ["admin.WorkerStatus.state", WorkerInfo],
    "InstanceState": ["catalog.InstanceStatus.state", "catalog.InstanceStatus", InstanceInfo],
    "InstanceRole": ["catalog.InstanceStatus.role", InstanceInfo],
    "CircuitState": ["catalog.InstanceStatus.circuit", InstanceInfo],
    "LeaseOutcome": ["admin.LeaseEnd.how"],
    "ApprovalState": ["admin.Approval.state", Approval],
    "ProblemScope": ["admin.Problem.scope", ProblemInfo],
    "Severity": ["admin.Problem.severity", ProblemInfo],
    "CallOutcome": ["admin.CallRecord.outcome"],
    "CallSelection": [],
}
"""Where each vocabulary is documented: a field of a message, a message, or a class of the SDK."""


def _comment(place: str) -> str:
    """Return the comment of a field (file.Message.field), or the text of a whole message."""
    file, message, *field = place.split(".")
    text = (_ROOT / f"protos/leaseway/v1/{file}.proto").read_text(encoding="utf-8")
    start = text.index(f"message {message} {{")
    body = text[start : text.index("\n}", start)]
    if not field:
        return body
    found = re.search(rf"((?: *//[^\n]*\n)+) *[\w.]+ {field[0]} = ", body)
    assert found, place
    return found[1]


@pytest.mark.parametrize("name", VOCABULARIES)
def test_each_word_is_where_programs_and_people_look_it_up(name: str) -> None:
    places = {str(each_place): each_place for each_place in _PLACES[name]}
    for where, place in places.items():
        text = _comment(place) if isinstance(place, str) else str(place.__doc__)
        missing = [word for word in VOCABULARIES[name] if f"`{word}`" not in text]
        assert not missing, f"{where} does not name {missing}"
    documents = "".join(path.read_text(encoding="utf-8") for path in (_ROOT / "docs").glob("*.md"))
    assert all(f"`{word}`" in documents for word in VOCABULARIES[name])


@pytest.mark.parametrize("name", ["WorkerState", "InstanceState", "Severity", "CallOutcome"])
def test_each_word_that_the_console_shows_as_a_badge_has_a_tone(name: str) -> None:
    tones = (_PAGE / "parts.js").read_text(encoding="utf-8")
    tones = tones[tones.index("const TONES") :]
    tones = tones[: tones.index("};")]
    assert [word for word in VOCABULARIES[name] if f"{word}: " not in tones] == []


@pytest.mark.parametrize(
    ("state", "role", "word"),
    [
        ("ready", "leased", "leased"),
        ("ready", "spare", "spare"),
        ("ready", "shared", "ready"),
        ("disconnected", "leased", "disconnected"),
        ("starting", "shared", "starting"),
    ],
)
def test_an_instance_is_counted_by_its_role_only_while_it_is_ready(
    state: str, role: str, word: str
) -> None:
    assert instance_word(state, role) == word


def test_the_operating_page_explains_each_state_of_a_server_in_order() -> None:
    page = (_ROOT / "docs/operating.md").read_text(encoding="utf-8")
    rows = [
        f"| `{state}` | {'yes' if state.is_up else 'no'} | {state.meaning} |"
        for state in ServerState
    ]
    assert "\n".join(rows) in page


def test_states_of_servers_are_the_enumeration_of_the_protocol() -> None:
    numbers = {server_state_to_proto(state) for state in ServerState}
    assert numbers == set(catalog_pb2.ServerState.values())
    assert [
        server_state_from_proto(server_state_to_proto(each_state)) for each_state in ServerState
    ] == list(ServerState)
    assert server_state_from_proto(4711) is ServerState.UNKNOWN
    assert [each_state.rank for each_state in ServerState] == list(range(len(ServerState)))
    assert {tone(each_state) for each_state in ServerState if not each_state.is_up} <= {
        "warn",
        "bad",
    }


def _enumerations() -> dict[str, EnumDescriptor]:
    """Return the enumerations of all generated modules, also those inside of messages."""
    found: dict[str, EnumDescriptor] = {}
    for module in pkgutil.iter_modules(v1.__path__, f"{v1.__name__}."):
        if module.name.endswith("_pb2"):
            file: FileDescriptor = import_module(module.name).DESCRIPTOR
            found |= file.enum_types_by_name
            inside = list(file.message_types_by_name.values())
            while inside:
                message = inside.pop()
                found |= message.enum_types_by_name
                inside += message.nested_types
    return found


def test_each_value_of_each_enumeration_of_the_protocol_is_converted() -> None:
    converted = {
        "ServerState": {server_state_to_proto(state) for state in ServerState} - {0},
        "BudgetQuota": set(QUOTAS.values()),
        "CallSelection": set(SELECTIONS.values()),
        "NameKind": set(NOUNS),
        "Started": set(STARTED_FROM_WIRE),
    }
    declared = {
        name: {value.number for value in found.values} - {0}
        for name, found in _enumerations().items()
    }
    assert converted == declared
    assert {scope for scope, _ in QUOTAS} == set(get_args(BudgetScope))
    assert {quota for _, quota in QUOTAS} == set(get_args(CallQuota))


def test_each_reason_of_an_error_is_in_the_runbook_and_the_design() -> None:
    design = (_ROOT / "docs/design.md").read_text(encoding="utf-8")
    errors = design.partition("\n## Errors\n")[2].partition("\n## ")[0]
    named = set(re.findall("[A-Z_]+", errors))
    for reason in Reason:
        assert reason.value in entries(), f"the runbook does not explain {reason.value}"
        assert reason.value in named, reason.value

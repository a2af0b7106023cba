"""Results in the form of the client's protocol version, with unchanged contents."""

from __future__ import annotations

import json
from traceback import format_exception
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types.jsonrpc import CONNECTION_CLOSED, REQUEST_TIMEOUT

from leaseway.front.protocol.handshake import SERVER_META
from leaseway.front.protocol.messages import UNAVAILABLE, encode
from leaseway.front.protocol.results import (
    adapt_result,
    fitting_result,
    result_for_program,
    rpc_error,
)
from leaseway.sdk import ServerError
from leaseway.sdk.errors import error_from_fault
from leaseway.wire.advice import LISTED_BY, for_operators
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT

MEMBERS = st.dictionaries(
    st.text(min_size=1).filter(lambda name: name not in ("resultType", "_meta")),
    st.none() | st.integers(-(2**53), 2**53) | st.text() | st.lists(st.text()),
)
EMPTY = {"resultType": "complete", "_meta": SERVER_META}
META = st.none() | st.dictionaries(
    st.sampled_from(["io.modelcontextprotocol/serverInfo", "com.example/x", "traceparent"]),
    st.text(),
)


@given(MEMBERS, META, st.sampled_from([None, "complete", "input_required"]), st.booleans())
def test_only_members_of_the_connection_are_changed(
    members: dict[str, Any], meta: dict[str, str] | None, kind: str | None, escaped: bool
) -> None:
    whole = dict(members)
    if meta is not None:
        whole["_meta"] = meta
    if kind is not None:
        whole["resultType"] = kind
    payload = json.dumps(whole, ensure_ascii=escaped).encode()
    kept = {key: value for key, value in (meta or {}).items() if not key.startswith("io.")}
    for modern in (True, False):
        fitted = json.loads(adapt_result(payload, modern=modern))
        assert fitted.pop("resultType", None) == ((kind or "complete") if modern else None)
        meta_of_front = SERVER_META if modern else {}
        assert fitted.pop("_meta", {}) == kept | meta_of_front
        assert fitted == members


def test_a_legacy_client_gets_a_plain_result_in_its_original_bytes() -> None:
    payload = b'{ "content" : [ ] , "n": 1.0e2}'
    assert adapt_result(payload, modern=False) is payload
    modern = adapt_result(payload, modern=True)
    assert modern.endswith(b'},"content" : [ ] , "n": 1.0e2}')
    assert json.loads(modern) == {**EMPTY, "content": [], "n": 100.0}
    assert json.loads(adapt_result(b"", modern=True)) == EMPTY


def test_cache_hints_are_for_complete_results_of_modern_clients_only() -> None:
    hinted = b'{"contents":[],"ttlMs":9,"cacheScope":"public"}'
    assert json.loads(adapt_result(hinted, modern=False, cached=True)) == {"contents": []}
    asking = b'{"resultType":"input_required","inputRequests":{}}'
    assert "ttlMs" not in json.loads(adapt_result(asking, modern=True, cached=True))


def test_resource_contents_get_cache_hints_with_the_time_that_the_server_sets() -> None:
    fitted = json.loads(adapt_result(b'{"contents":[]}', modern=True, cached=True))
    assert (fitted["ttlMs"], fitted["cacheScope"]) == (0, "private")
    own = json.loads(adapt_result(b'{"contents":[],"ttlMs":9}', modern=True, cached=True))
    assert own["ttlMs"] == 9


@pytest.mark.parametrize("ttl", ["-1", '"9"', "1.5", "null", "[]"])
def test_a_time_to_live_that_is_none_is_replaced(ttl: str) -> None:
    payload = b'{"contents":[],"ttlMs":%b}' % ttl.encode()
    assert json.loads(adapt_result(payload, modern=True, cached=True))["ttlMs"] == 0


@pytest.mark.parametrize("scope", [b'"public"', b'"private"', b"7"])
def test_contents_of_resources_are_private_whatever_their_server_says(scope: bytes) -> None:
    payload = b'{"contents":[],"ttlMs":9,"cacheScope":%b}' % scope
    fitted = json.loads(adapt_result(payload, modern=True, cached=True))
    assert (fitted["ttlMs"], fitted["cacheScope"]) == (9, "private")


@pytest.mark.parametrize(
    ("capability", "required"),
    [("", {"elicitation": {}}), ("elicitation.url", {"elicitation": {"url": {}}})],
)
def test_an_undeclared_capability_is_named_as_clients_declare_it(
    capability: str, required: dict[str, Any]
) -> None:
    facts = {"method": ELICIT} | ({"capability": capability} if capability else {})
    fault = Fault(Reason.INPUT_REQUIRED, "It asks.", metadata=facts)
    error = rpc_error(error_from_fault(fault), modern=True)
    assert (error.code, error.data["requiredCapabilities"]) == (-32021, required)
    older = rpc_error(error_from_fault(fault), modern=False)
    assert (older.code, older.data) == (UNAVAILABLE, error.data)


@pytest.mark.parametrize(("facts", "code"), [({"offered": "no"}, -32602), ({}, UNAVAILABLE)])
def test_a_tool_that_a_server_does_not_offer_to_a_client_is_unknown_to_it(
    facts: dict[str, str], code: int
) -> None:
    error = error_from_fault(Fault(Reason.TOOL_DIFFERS, "It does not offer it.", metadata=facts))
    assert rpc_error(error, modern=True).code == code


@pytest.mark.parametrize("reason", Reason)
def test_no_failure_has_a_code_by_which_a_client_means_its_own_connection(reason: Reason) -> None:
    error = error_from_fault(Fault(reason, "It failed."))
    for modern in (True, False):
        code = rpc_error(error, modern=modern).code
        assert code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT), "frameworks repeat the call"


def test_a_model_whose_lease_has_ended_is_told_to_call_again() -> None:
    facts = for_operators("Acquire a new lease.")
    error = error_from_fault(Fault(Reason.LEASE_LOST, "Lease w1 was lost.", metadata=facts))
    said = rpc_error(error, modern=True).message
    assert (
        said == "Lease w1 was lost. Call again: the next call gets the server without that state."
    )


def test_what_an_operator_does_is_told_to_no_client() -> None:
    facts = for_operators("See `leaseway workers`.")
    error = error_from_fault(Fault(Reason.WORKER_LOST, "Worker 'w' is lost.", metadata=facts))
    said = rpc_error(error, modern=True)
    assert said.message == "Worker 'w' is lost."
    assert "leaseway" not in str(said.data)
    assert error.advice in "".join(format_exception(error)), "developers read it"


def test_an_unknown_name_gets_no_advice_for_a_terminal() -> None:
    facts = {LISTED_BY: "tools"}
    error = error_from_fault(Fault(Reason.TOOL_NOT_FOUND, "There is no tool 'x'.", metadata=facts))
    said = rpc_error(error, modern=True)
    assert (said.code, said.message) == (
        -32602,
        "There is no tool 'x'. Use a name that is listed.",
    )


@pytest.mark.parametrize(
    ("code", "older"), [(-32020, -32600), (-32021, UNAVAILABLE), (-32022, -32602), (-32042, -32042)]
)
def test_codes_of_a_newer_server_are_said_in_those_of_an_older_client(
    code: int, older: int
) -> None:
    facts = {"code": str(code), "message": "No.", "data": '{"supported":[]}'}
    error = error_from_fault(Fault(Reason.SERVER_ERROR, "No.", metadata=facts))
    assert isinstance(error, ServerError)
    assert error.code == code
    for modern, expected in ((True, code), (False, older)):
        said = rpc_error(error, modern=modern)
        assert (said.code, said.message, said.data) == (expected, "No.", {"supported": []})


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ([], ['{"id":"7"}']),
        ([{"type": "text", "text": "seven"}], ["seven", '{"id":"7"}']),
        ([{"type": "text", "text": '{ "id": "7" }'}], ['{ "id": "7" }']),
    ],
)
def test_a_result_that_does_not_fit_its_schema_becomes_an_error_with_all_that_it_says(
    content: list[dict[str, str]], texts: list[str]
) -> None:
    unfit = {"leaseway/unfit": "$.id: not an integer", "own": 1}
    result = {"content": content, "structuredContent": {"id": "7"}, "_meta": unfit}
    changed = json.loads(fitting_result(encode(result)))
    *said, why = [item["text"] for item in changed["content"]]
    assert said == texts
    assert why.endswith("$.id: not an integer")
    assert (changed["isError"], changed["_meta"]) == (True, unfit)
    assert "structuredContent" not in changed


def test_an_error_that_does_not_fit_says_nothing_else() -> None:
    unfit = {"leaseway/unfit": "$: no"}
    result = {"content": [], "structuredContent": {"a": 1}, "_meta": unfit, "isError": True}
    changed = json.loads(fitting_result(encode(result)))
    assert changed == {
        "content": [{"type": "text", "text": '{"a":1}'}],
        "_meta": unfit,
        "isError": True,
    }


@pytest.mark.parametrize(
    "result",
    [
        {"content": [{"type": "text", "text": '"leaseway/unfit"'}]},
        {"content": [], "structuredContent": {"leaseway/unfit": 1}, "_meta": {"a": 1}},
        {"content": [], "_meta": [{"leaseway/unfit": 1}]},
        {"content": {"leaseway/unfit": 1}, "_meta": {"leaseway/unfit": ""}},
    ],
)
def test_a_mark_elsewhere_says_nothing_of_a_result(result: dict[str, Any]) -> None:
    payload = json.dumps(result).encode()
    assert fitting_result(payload) == payload


def test_structured_content_is_not_looked_for_in_very_many_texts() -> None:
    content = [{"type": "text", "text": "[1]"}] * 1_001
    result = {"content": content, "structuredContent": [1], "_meta": {"leaseway/unfit": "no"}}
    changed = json.loads(fitting_result(encode(result)))
    assert len(changed["content"]) == len(content) + 2


GEMINI = "gemini-cli-mcp-client"


@pytest.mark.parametrize("text", ['[1, {"a": "é"}]', "42", " null\n", '"said"', "true"])
def test_gemini_cli_gets_a_text_that_is_json_but_no_object_as_a_member(text: str) -> None:
    content = [{"type": "text", "text": text}, {"type": "text", "text": "more"}]
    result = json.loads(result_for_program(encode({"content": content, "isError": False}), GEMINI))
    assert result["structuredContent"] == {"result": json.loads(text)}
    assert (result["content"], result["isError"]) == (content, False)


@pytest.mark.parametrize(
    "result",
    [
        *(
            {"content": [{"type": "text", "text": text}]}
            for text in ('{"a": 1}', "[1", "1 pid", "")
        ),
        {"content": [{"type": "text", "text": "[1]"}], "structuredContent": {"a": 1}},
        {"content": [{"type": "image", "data": "", "mimeType": "image/png"}]},
        {"content": []},
        {},
    ],
)
def test_gemini_cli_gets_other_results_as_they_are(result: dict[str, Any]) -> None:
    payload = encode(result)
    assert result_for_program(payload, GEMINI) is payload


def test_other_programs_get_a_text_that_is_json_as_it_is() -> None:
    payload = encode({"content": [{"type": "text", "text": "[1]"}]})
    assert result_for_program(payload, "claude-code") is payload
    assert result_for_program(payload, None) is payload

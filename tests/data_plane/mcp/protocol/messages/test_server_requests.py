"""Server requests without a server: their calls, announced capabilities, input rounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from tests.conftest import BOUND

from leaseway.data_plane.core.calls.call import (
    SERVER_METHODS,
    Ask,
    Callbacks,
    Outcome,
    ToolRequest,
    answerable,
)
from leaseway.data_plane.mcp.protocol.features.handshake import build_era
from leaseway.data_plane.mcp.protocol.messages.codec import JsonRpcMessage, encode_call
from leaseway.data_plane.mcp.protocol.messages.era import LEGACY, Era, params_head
from leaseway.data_plane.mcp.protocol.messages.incoming import (
    Asked,
    LegacyServerRequests,
    find_asked_call,
)
from leaseway.data_plane.mcp.protocol.messages.liveness import Refusals
from leaseway.data_plane.mcp.protocol.messages.pending import ToolCall
from leaseway.data_plane.mcp.protocol.messages.reading import read
from leaseway.data_plane.mcp.protocol.messages.server_requests import (
    InputRounds,
    missing_method,
    parse_params,
    unanswerable,
    url_elicitations,
)
from leaseway.wire.bounds import MAX_ASKS
from leaseway.wire.clients.mcp_client import McpClient
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, HEADER_MISMATCH, ROOTS, SAMPLE
from leaseway.wire.signals import Signal


class Calls:
    """A connection, as calls see it."""

    era: Era = LEGACY
    refusals = Refusals()

    def request_input(self, call: ToolCall, result: bytes, declined: Fault | None = None) -> None:
        """Not called."""

    def cancel_call(self, call: ToolCall, reason: str) -> None:
        """Not called."""

    def log_repair(self, what: str, how: str) -> None:
        """Not called."""

    relists = 0

    def on_tools_changed(self) -> None:
        """Count what reads the tools anew."""
        self.relists += 1

    def warn_no_back_channel(self) -> None:
        """Not called."""


def request(*answers: str, on_ask: Callable[[Ask], None] = lambda _: None) -> ToolRequest:
    return ToolRequest(
        "t",
        params_head("t"),
        b"{}",
        callbacks=Callbacks(answers=answerable(answers), on_ask=on_ask if answers else None),
    )


def call(*answers: str, on_ask: Callable[[Ask], None] = lambda _: None) -> ToolCall:
    return ToolCall(Calls(), "s", 1, request(*answers, on_ask=on_ask), lambda _: None)


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


@pytest.mark.parametrize("own", ["input_required", "table", 5])
def test_a_result_type_of_a_server_of_an_older_version_says_nothing(own: Any) -> None:
    outcomes: list[Outcome] = []
    asked = ToolCall(Calls(), "s", 1, request(), outcomes.append)
    result = {"content": [], "resultType": own, "rows": 1}
    asked.resolve(read(json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()))
    (outcome,) = outcomes
    assert json.loads(outcome.payload) == {"content": [], "rows": 1}


@pytest.mark.parametrize(
    ("era", "method", "has_rounds", "relists", "started"),
    [
        (Era(modern=True), "", False, 1, "no"),
        (Era(modern=True), "", True, 1, "yes"),  # its first round may have changed something
        (Era(modern=True), "prompts/get", False, 0, "yes"),
        (LEGACY, "", False, 0, "yes"),  # there the code is one of the server's own
    ],
)
def test_only_a_modern_call_of_a_tool_that_is_refused_for_its_headers_has_not_started(
    era: Era, method: str, has_rounds: bool, relists: int, started: str
) -> None:
    outcomes: list[Outcome] = []
    connection = Calls()
    connection.era = era
    sent = ToolRequest("t", params_head("t"), b"{}", method=method, callbacks=Callbacks())
    refused = ToolCall(connection, "s", 1, sent, outcomes.append)
    if has_rounds:
        refused.begin_rounds(cast("InputRounds", object()))
    error = {"code": HEADER_MISMATCH, "message": "Mcp-Param-Region is missing."}
    refused.resolve(read(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}).encode()))
    (outcome,) = outcomes
    assert outcome.fault is not None
    assert (connection.relists, outcome.fault.started) == (relists, started)


def test_unknown_methods_are_not_among_the_answers() -> None:
    assert answerable([ROOTS, "x/new", ROOTS]) == {ROOTS}
    assert answerable([]) == frozenset()
    assert answerable(SERVER_METHODS) == SERVER_METHODS


def test_a_server_request_is_resolved_once() -> None:
    said: list[Any] = []
    for action in ("answer", "refuse", "withdraw"):
        ask = Ask(ELICIT, b"{}", said.append, lambda code, text, _: said.append((code, text)))
        ask.withdrawn.connect(lambda: said.append("withdrawn"))
        getattr(ask, action)(*{"answer": (b"1",), "refuse": (1, "no"), "withdraw": ()}[action])
        ask.answer(b"again")
        ask.refuse(2, "again")
        ask.withdraw()
    assert said == [b"1", (1, "no"), "withdrawn"]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"", b"{}"),
        (b"null", b"{}"),
        (b'{"a": 1.0}', b'{"a": 1.0}'),
        ('{"a":"ü"}'.encode(), '{"a":"ü"}'.encode()),
        (b'{"a":"\xff"}', None),
        (b"[1]", None),
    ],
)
def test_params_are_passed_on_unchanged_if_they_are_an_object(
    sent: bytes, kept: bytes | None
) -> None:
    assert parse_params(msgspec.Raw(sent)) == kept


@pytest.mark.parametrize(
    ("data", "answers", "method"),
    [
        ({"requiredCapabilities": {"roots": {}}}, [], ROOTS),
        ({"requiredCapabilities": {"roots": {}, "sampling": {}}}, [ROOTS], SAMPLE),
        ({"requiredCapabilities": {"roots": {}}}, [ROOTS], None),
        ({"requiredCapabilities": {"telepathy": {}}}, [], None),
        ({"requiredCapabilities": ["roots"]}, [], None),
        ({}, [], None),
        (None, [], None),
    ],
)
def test_required_capabilities_are_compared_with_the_callers_answers(
    data: Any, answers: list[str], method: str | None
) -> None:
    assert missing_method(-32021, raw(data), answerable(answers)) == method
    assert missing_method(-32602, raw(data), answerable(answers)) is None


def test_a_server_request_belongs_to_the_oldest_call_with_the_fewest_open_ones() -> None:
    calls = [call(ROOTS), call(SAMPLE), call(SAMPLE), call(SAMPLE)]
    open_requests = [0, 2, 1, 1]

    def count(asked: Asked) -> int:
        return next(n for n, known in zip(open_requests, calls, strict=True) if known is asked)

    assert find_asked_call(calls, SAMPLE, asks_of=count) is calls[2]


def test_a_server_request_belongs_to_the_oldest_call_that_answers_it() -> None:
    calls = [call(), call(ROOTS), call(SAMPLE), call(ROOTS, SAMPLE)]
    assert find_asked_call(calls, SAMPLE) is calls[2]
    assert find_asked_call(calls, ROOTS) is calls[1]
    assert "on_elicitation=" in str(find_asked_call(calls, ELICIT))
    assert "truely-stateless" in str(find_asked_call(calls, SAMPLE, shared=True))


def test_a_request_that_an_mcp_client_does_not_answer_names_the_capability() -> None:
    callbacks = Callbacks(client=McpClient("2025-11-25", {}))
    asked = ToolRequest("t", params_head("t"), b"{}", callbacks=callbacks)
    calls = [ToolCall(Calls(), "s", 1, asked, lambda _: None)]
    why = "The client has not declared the capability elicitation."
    assert find_asked_call(calls, ELICIT) == why


@pytest.mark.parametrize("shared", [False, True])
def test_a_server_request_without_a_call_is_rejected(shared: bool) -> None:
    why = str(find_asked_call([], ROOTS, shared=shared))
    assert why.startswith("No call is in flight")
    assert "roots=" not in why


class Legacy:
    """A legacy server's requests and the responses that it got."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.asks: list[Ask] = []
        self.other: Asked | str = "There is no other call."
        self.requests = LegacyServerRequests(
            lambda line, _call: self.sent.append(json.loads(line)),
            lambda _method: self.other,
            Signal(),
        )
        self.call = call(*SERVER_METHODS, on_ask=self.asks.append)

    def ask(
        self, key: Any, params: Any = None, method: str = ELICIT, related: ToolCall | None = None
    ) -> None:
        """Handle a request of the server."""
        message = {"jsonrpc": "2.0", "id": key, "method": method, "params": params}
        self.requests.handle(read(json.dumps(message).encode()), self.call, related)


@pytest.mark.parametrize("key", [7, "seven", "7", 0, 7.5])
def test_a_response_has_the_id_of_its_request(key: Any) -> None:
    server = Legacy()
    server.ask(key)
    server.asks[0].answer(b'{"action":"accept","x":1.0}')
    assert server.sent == [{"jsonrpc": "2.0", "id": key, "result": {"action": "accept", "x": 1.0}}]
    assert len(server.requests) == 0


def test_an_error_of_the_caller_reaches_the_server_with_code_and_data() -> None:
    server = Legacy()
    server.ask(1)
    server.asks[0].refuse(-1, "No.", b'{"a": 1.0}')
    error = {"code": -1, "message": "No.", "data": {"a": 1.0}}
    assert server.sent == [{"jsonrpc": "2.0", "id": 1, "error": error}]


def test_another_call_is_asked_if_the_one_ends_that_was_a_guess() -> None:
    server, others = Legacy(), list[Ask]()
    server.ask(1, {"message": "Which?"})
    server.other = call(*SERVER_METHODS, on_ask=others.append)
    server.asks[0].end_with_call()
    assert (server.sent, server.requests.asks_of(server.call)) == ([], 0)
    assert (others[0].method, json.loads(others[0].params)) == (ELICIT, {"message": "Which?"})
    others[0].answer(b"{}")
    assert server.sent == [{"jsonrpc": "2.0", "id": 1, "result": {}}]


def test_a_request_is_moved_to_a_few_calls_only() -> None:
    server = Legacy()
    server.other = server.call
    server.ask(1)
    while not server.sent:
        server.asks[-1].end_with_call()
    assert len(server.asks) == 5
    assert "has ended" in server.sent[0]["error"]["message"]


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_request_whose_call_ends_gets_an_error_if_no_other_call_can_have_sent_it(
    is_certain: bool,
) -> None:
    server = Legacy()
    server.ask(1, related=server.call if is_certain else None)
    if is_certain:
        server.other = call(*SERVER_METHODS)
    server.asks[0].end_with_call()
    assert "has ended" in server.sent[0]["error"]["message"]
    assert len(server.requests) == 0


def test_a_repeated_request_is_asked_once_while_it_is_open() -> None:
    server = Legacy()
    server.ask(1)
    server.ask("1")
    assert (len(server.asks), server.sent) == (1, [])
    server.asks[0].answer(b"{}")
    server.ask(1)
    assert len(server.asks) == 2


def test_params_that_are_not_an_object_are_rejected() -> None:
    server = Legacy()
    server.ask(1, params=[1])
    assert server.sent[0]["error"]["code"] == -32602
    assert not server.asks


def test_a_withdrawn_request_gets_no_response() -> None:
    server = Legacy()
    server.ask(1)
    for unknown in (2, None, [1], "one"):
        server.requests.withdraw(unknown)
    assert server.asks[0].is_open
    server.requests.withdraw("1")
    server.asks[0].answer(b"{}")
    assert (server.sent, len(server.requests)) == ([], 0)


def test_a_call_announces_the_capabilities_that_its_caller_answers() -> None:
    era = build_era("2026-07-28")
    key = "io.modelcontextprotocol/clientCapabilities"

    def announced(call: ToolRequest) -> Any:
        return json.loads(encode_call(1, call, era))["params"]["_meta"][key]

    assert announced(request()) == {}
    assert announced(request(SAMPLE)) == {"sampling": {}}
    assert announced(request(*SERVER_METHODS)) == {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {},
        "roots": {},
    }


class Modern:
    """A modern call and its input rounds."""

    def __init__(self, *answers: str, roots: bytes | None = None) -> None:
        self.asks: list[Ask] = []
        self.resent: list[Any] = []
        self.faults: list[Fault] = []
        self.rounds = InputRounds(
            "s",
            request(*answers, on_ask=self.asks.append),
            lambda more: self.resent.append(json.loads(b"{" + more[1:] + b"}")),
            self.faults.append,
            roots,
        )

    def record_raw(self) -> None:
        """Record the continuation as bytes."""
        self.rounds._resend = self.resent.append

    def start(self, **result: Any) -> None:
        """Start a round with a result of the server."""
        self.rounds.start(json.dumps({"resultType": "input_required", **result}).encode())

    @property
    def reason(self) -> Reason:
        """Why the call failed."""
        (fault,) = self.faults
        assert not self.rounds.waiting
        assert fault.started == "yes"
        return fault.reason


def test_a_call_is_sent_again_once_with_all_answers_and_the_state() -> None:
    call = Modern(*SERVER_METHODS)
    requested = {"a": {"method": ROOTS}, 'b"': {"method": ELICIT, "params": {"message": "?"}}}
    call.start(inputRequests=requested, requestState='s"1')
    assert [(ask.method, ask.params) for ask in call.asks] == [
        (ROOTS, b"{}"),
        (ELICIT, b'{"message": "?"}'),
    ]
    call.asks[1].answer(b'{"x":1.0}')
    assert call.rounds.waiting
    assert not call.resent
    call.asks[0].answer(b'{"roots":[]}')
    assert call.resent == [
        {"inputResponses": {"a": {"roots": []}, 'b"': {"x": 1.0}}, "requestState": 's"1'}
    ]
    assert not call.rounds.waiting


def test_roots_of_permissions_are_sent_for_the_caller() -> None:
    call = Modern(ELICIT, roots=b'{"roots":[]}')
    call.start(inputRequests={"a": {"method": ROOTS}}, requestState="s")
    assert call.resent == [{"inputResponses": {"a": {"roots": []}}, "requestState": "s"}]
    call.start(inputRequests={"a": {"method": ROOTS}, "b": {"method": ELICIT}})
    assert [ask.method for ask in call.asks] == [ELICIT]
    call.asks[0].answer(b"{}")
    assert call.resent[1:] == [{"inputResponses": {"a": {"roots": []}, "b": {}}}]


def test_a_round_without_a_state_sends_none() -> None:
    call = Modern(ROOTS)
    call.start(inputRequests={"a": {"method": ROOTS}})
    call.asks[0].answer(b"{}")
    assert call.resent == [{"inputResponses": {"a": {}}}]


def test_a_refused_request_fails_the_call_and_withdraws_the_others() -> None:
    call = Modern(ROOTS)
    call.start(inputRequests={"a": {"method": ROOTS}, "b": {"method": ROOTS}})
    call.asks[0].refuse(-32603, "The caller could not answer: KeyError")
    assert call.reason is Reason.INPUT_REQUIRED
    assert "KeyError" in call.faults[0].message
    assert not call.asks[1].is_open
    call.asks[1].answer(b"{}")
    assert not call.resent


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"inputRequests": {}},
        {"inputRequests": [1]},
        {"requestState": 1},
        {"inputRequests": {"a": {"method": "x/y"}}},
        {"inputRequests": {"a": {"method": ROOTS, "params": [1]}}},
        {"inputRequests": {str(n): {"method": ROOTS} for n in range(MAX_ASKS + 1)}},
    ],
)
def test_an_invalid_request_for_input_is_the_servers_error(result: Any) -> None:
    call = Modern(*SERVER_METHODS)
    call.start(**result)
    assert call.reason is Reason.SERVER_ERROR
    assert not call.asks


def test_an_unanswered_method_fails_the_call_before_any_ask() -> None:
    call = Modern(ROOTS)
    call.start(inputRequests={"a": {"method": ROOTS}, "b": {"method": ELICIT}})
    assert call.reason is Reason.INPUT_REQUIRED
    assert call.faults[0].metadata == {"server": "s", "method": ELICIT}
    assert not call.asks


def test_a_cancelled_call_withdraws_its_requests() -> None:
    call = Modern(ROOTS)
    call.start(inputRequests={"a": {"method": ROOTS}})
    withdrawn: list[bool] = []
    call.asks[0].withdrawn.connect(lambda: withdrawn.append(True))
    call.rounds.cancel()
    assert withdrawn == [True]
    assert (call.resent, call.faults) == ([], [])


VISIT = {"mode": "url", "url": "http://127.0.0.1/", "message": "Visit", "elicitationId": "e"}


def test_url_elicitations_are_requests_if_the_caller_answers_them() -> None:
    data = raw({"elicitations": [VISIT]})
    assert url_elicitations(data, answerable([ROOTS])) is None
    assert missing_method(-32042, data, answerable([ROOTS])) == ELICIT
    others: list[Any] = [{"elicitations": []}, {"elicitations": 1}, {"why": "x"}, None]
    for other in others:
        assert missing_method(-32042, raw(other), answerable([ROOTS])) is None
    assert url_elicitations(raw({"elicitations": []}), answerable(SERVER_METHODS)) is None
    assert url_elicitations(raw({"elicitations": 1}), answerable(SERVER_METHODS)) is None
    requested = url_elicitations(data, answerable(SERVER_METHODS))
    assert requested is not None
    assert json.loads(requested) == {"inputRequests": {"0": {"method": ELICIT, "params": VISIT}}}


@pytest.mark.parametrize(
    ("answer", "is_resent"), [(b'{"action":"accept"}', True), (b'{"action":"decline"}', False)]
)
def test_a_call_is_sent_again_unchanged_once_all_urls_were_visited(
    answer: bytes, is_resent: bool
) -> None:
    call = Modern(ELICIT)
    requested = url_elicitations(raw({"elicitations": [VISIT, VISIT]}), answerable([ELICIT]))
    assert requested is not None
    call.record_raw()
    call.rounds.start(requested, Fault(Reason.SERVER_ERROR, "Visit first.", "yes"))
    call.asks[0].answer(b'{"action":"accept"}')
    call.asks[1].answer(answer)
    if is_resent:
        assert (call.resent, call.faults) == ([b""], [])
    else:
        assert call.reason is Reason.SERVER_ERROR


async def test_a_call_without_requests_is_sent_again_after_growing_pauses() -> None:
    call = Modern()
    loop = asyncio.get_running_loop()
    started = loop.time()
    for number in range(1, 3):
        call.start(requestState=str(number))
        assert len(call.resent) == number - 1
        async with asyncio.timeout(BOUND):
            while len(call.resent) < number:
                await asyncio.sleep(0)
    assert loop.time() - started >= 0.15
    assert call.resent == [{"requestState": "1"}, {"requestState": "2"}]
    call.start(requestState="3")
    call.rounds.cancel()


@pytest.mark.parametrize("declared", [{"elicitation": {}}, {"elicitation": {"url": {}}}, {}])
def test_a_client_gets_no_request_that_it_has_not_declared(declared: dict[str, Any]) -> None:
    client = McpClient("2026-07-28", declared)
    request = ToolRequest(
        "tool",
        b"",
        b"{}",
        callbacks=Callbacks(answers=answerable(client.answers), client=client),
    )
    asked = {"a": {"method": ELICIT, "params": {"mode": "url", "url": "https://x"}}}
    result = json.dumps({"resultType": "input_required", "inputRequests": asked}).encode()
    fault = unanswerable("server", request, result)
    if "url" in declared.get("elicitation", {}):
        assert fault is None
    else:
        assert fault is not None
        lacking = "elicitation.url" if declared else "elicitation"
        assert (fault.reason, fault.metadata["capability"]) == (Reason.INPUT_REQUIRED, lacking)


@pytest.mark.parametrize(
    ("client", "advice"),
    [
        (None, "pass on_sampling= to the call"),
        (McpClient("2026-07-28", {}), "its client must declare the capability sampling"),
    ],
)
def test_a_required_capability_is_explained_to_those_who_can_declare_it(
    client: McpClient | None, advice: str
) -> None:
    outcomes: list[Outcome] = []
    request = ToolRequest("tool", b"", b"{}", callbacks=Callbacks(client=client))
    call = ToolCall(Calls(), "s", 1, request, outcomes.append)
    data: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
    call.resolve(JsonRpcMessage(1, error=raw({"code": -32021, "message": "no", "data": data})))
    assert outcomes[0].fault is not None
    assert advice in outcomes[0].fault.message

"""Questions of servers, without a server: whose they are, what is announced, how rounds go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.conftest import BOUND

from leaseway.data_plane.core.calls.call import SERVER_METHODS, Ask, ToolRequest, answerable
from leaseway.data_plane.mcp.protocol.features.handshake import era_of
from leaseway.data_plane.mcp.protocol.messages.codec import decode, encode_call
from leaseway.data_plane.mcp.protocol.messages.era import LEGACY, params_head
from leaseway.data_plane.mcp.protocol.messages.pending import ToolCall
from leaseway.data_plane.mcp.protocol.messages.server_requests import (
    lacking,
    params_of,
    url_questions,
)
from leaseway.data_plane.mcp.protocol.messages.server_requests_legacy import LegacyAsks, asked_of
from leaseway.data_plane.mcp.protocol.messages.server_requests_modern import Rounds
from leaseway.wire.bounds import MAX_ASKS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ELICIT, ROOTS, SAMPLE


class Calls:
    """A connection, as far as calls need one."""

    era = LEGACY

    def ask_first(self, call: ToolCall, wanted: bytes, otherwise: Fault | None = None) -> None:
        """Nothing is asked here."""

    def cancel_call(self, call: ToolCall, reason: str) -> None:
        """Nothing is cancelled here."""

    def lacks_back_channel(self) -> None:
        """Nothing is asked here."""


def request(*answers: str, take: Callable[[Ask], None] = lambda _: None) -> ToolRequest:
    return ToolRequest(
        "t", params_head("t"), b"{}", answers=answerable(answers), on_ask=take if answers else None
    )


def call(*answers: str, take: Callable[[Ask], None] = lambda _: None) -> ToolCall:
    return ToolCall(Calls(), "s", 1, request(*answers, take=take), lambda _: None)


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def test_what_later_versions_can_ask_is_left_out_of_the_answers() -> None:
    assert answerable([ROOTS, "x/new", ROOTS]) == {ROOTS}
    assert answerable([]) == frozenset()
    assert answerable(SERVER_METHODS) == SERVER_METHODS


def test_a_question_is_settled_once() -> None:
    said: list[Any] = []
    for settle in ("answer", "refuse", "withdraw"):
        ask = Ask(ELICIT, b"{}", said.append, lambda code, text: said.append((code, text)))
        ask.on_withdrawn = lambda: said.append("withdrawn")
        getattr(ask, settle)(*{"answer": (b"1",), "refuse": (1, "no"), "withdraw": ()}[settle])
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
def test_params_are_kept_as_they_come_if_they_are_an_object(
    sent: bytes, kept: bytes | None
) -> None:
    assert params_of(msgspec.Raw(sent)) == kept


@pytest.mark.parametrize(
    ("data", "answers", "method"),
    [
        ({"requiredCapabilities": {"roots": {}}}, [], ROOTS),
        ({"requiredCapabilities": {"roots": {}, "sampling": {}}}, [ROOTS], SAMPLE),
        ({"requiredCapabilities": {"roots": {}}}, [ROOTS], None),
        ({"requiredCapabilities": ["roots"]}, [], None),
        ({}, [], None),
        (None, [], None),
    ],
)
def test_what_a_server_demands_is_compared_with_what_the_caller_answers(
    data: Any, answers: list[str], method: str | None
) -> None:
    assert lacking(-32021, raw(data), answerable(answers)) == method
    assert lacking(-32602, raw(data), answerable(answers)) is None


def test_a_question_belongs_to_the_oldest_call_whose_caller_answers_it() -> None:
    calls = [call(), call(ROOTS), call(SAMPLE), call(ROOTS, SAMPLE)]
    assert asked_of(calls, SAMPLE) is calls[2]
    assert asked_of(calls, ROOTS) is calls[1]
    assert "on_elicitation=" in str(asked_of(calls, ELICIT))
    assert "truely-stateless" in str(asked_of(calls, SAMPLE, shared=True))


@pytest.mark.parametrize("shared", [False, True])
def test_a_question_outside_of_all_calls_is_told_that_there_is_none(shared: bool) -> None:
    why = str(asked_of([], ROOTS, shared=shared))
    assert why.startswith("No call is under way")
    assert "roots=" not in why


class Legacy:
    """A legacy server's questions, and what it got for them."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.taken: list[Ask] = []
        self.asks = LegacyAsks(lambda line, _call: self.sent.append(json.loads(line)))
        self.call = call(*SERVER_METHODS, take=self.taken.append)

    def ask(self, key: Any, params: Any = None, method: str = ELICIT) -> None:
        """Have the server ask."""
        message = {"jsonrpc": "2.0", "id": key, "method": method, "params": params}
        self.asks.take(decode(json.dumps(message).encode()), self.call)


@pytest.mark.parametrize("key", [7, "seven", "7", 0, 7.5])
def test_an_answer_has_the_id_of_its_question(key: Any) -> None:
    server = Legacy()
    server.ask(key)
    server.taken[0].answer(b'{"action":"accept","x":1.0}')
    assert server.sent == [{"jsonrpc": "2.0", "id": key, "result": {"action": "accept", "x": 1.0}}]
    assert len(server.asks) == 0


def test_a_question_that_comes_again_while_it_is_open_is_asked_once() -> None:
    server = Legacy()
    server.ask(1)
    server.ask("1")
    assert (len(server.taken), server.sent) == (1, [])
    server.taken[0].answer(b"{}")
    server.ask(1)
    assert len(server.taken) == 2


def test_params_that_are_no_object_are_refused() -> None:
    server = Legacy()
    server.ask(1, params=[1])
    assert server.sent[0]["error"]["code"] == -32602
    assert not server.taken


def test_a_withdrawn_question_sends_nothing() -> None:
    server = Legacy()
    server.ask(1)
    for unknown in (2, None, [1], "one"):
        server.asks.withdraw(unknown)
    assert server.taken[0].is_open
    server.asks.withdraw("1")
    server.taken[0].answer(b"{}")
    assert (server.sent, len(server.asks)) == ([], 0)


def test_a_call_announces_what_its_caller_answers() -> None:
    era = era_of("2026-07-28")
    key = "io.modelcontextprotocol/clientCapabilities"

    def announced(made: ToolRequest) -> Any:
        return json.loads(encode_call(1, made, era))["params"]["_meta"][key]

    assert announced(request()) == {}
    assert announced(request(SAMPLE)) == {"sampling": {}}
    assert announced(request(*SERVER_METHODS)) == {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {},
        "roots": {},
    }


class Modern:
    """A modern call, and what became of its rounds."""

    def __init__(self, *answers: str, roots: bytes | None = None) -> None:
        self.asks: list[Ask] = []
        self.repeated: list[Any] = []
        self.faults: list[Fault] = []
        self.rounds = Rounds(
            "s",
            request(*answers, take=self.asks.append),
            lambda more: self.repeated.append(json.loads(b"{" + more[1:] + b"}")),
            self.faults.append,
            roots,
        )

    def repeat_plainly(self) -> None:
        """Note what is added to a call that is made again as it came."""
        self.rounds._repeat = self.repeated.append

    def begin(self, **result: Any) -> None:
        """Have the server want something."""
        self.rounds.begin(json.dumps({"resultType": "input_required", **result}).encode())

    @property
    def reason(self) -> Reason:
        """Why the call was given up."""
        (fault,) = self.faults
        assert not self.rounds.waiting
        assert fault.started == "yes"
        return fault.reason


def test_a_call_is_repeated_once_with_all_answers_and_the_state() -> None:
    call = Modern(*SERVER_METHODS)
    wanted = {"a": {"method": ROOTS}, 'b"': {"method": ELICIT, "params": {"message": "?"}}}
    call.begin(inputRequests=wanted, requestState='s"1')
    assert [(ask.method, ask.params) for ask in call.asks] == [
        (ROOTS, b"{}"),
        (ELICIT, b'{"message": "?"}'),
    ]
    call.asks[1].answer(b'{"x":1.0}')
    assert call.rounds.waiting
    assert not call.repeated
    call.asks[0].answer(b'{"roots":[]}')
    assert call.repeated == [
        {"inputResponses": {"a": {"roots": []}, 'b"': {"x": 1.0}}, "requestState": 's"1'}
    ]
    assert not call.rounds.waiting


def test_roots_of_permissions_answer_for_the_caller() -> None:
    call = Modern(ELICIT, roots=b'{"roots":[]}')
    call.begin(inputRequests={"a": {"method": ROOTS}}, requestState="s")
    assert call.repeated == [{"inputResponses": {"a": {"roots": []}}, "requestState": "s"}]
    call.begin(inputRequests={"a": {"method": ROOTS}, "b": {"method": ELICIT}})
    assert [ask.method for ask in call.asks] == [ELICIT]
    call.asks[0].answer(b"{}")
    assert call.repeated[1:] == [{"inputResponses": {"a": {"roots": []}, "b": {}}}]


def test_a_round_without_a_state_sends_none() -> None:
    call = Modern(ROOTS)
    call.begin(inputRequests={"a": {"method": ROOTS}})
    call.asks[0].answer(b"{}")
    assert call.repeated == [{"inputResponses": {"a": {}}}]


def test_a_refused_question_ends_the_call_with_the_reason_and_forgets_the_others() -> None:
    call = Modern(ROOTS)
    call.begin(inputRequests={"a": {"method": ROOTS}, "b": {"method": ROOTS}})
    call.asks[0].refuse(-32603, "The caller could not answer: KeyError")
    assert call.reason is Reason.INPUT_REQUIRED
    assert "KeyError" in call.faults[0].message
    assert not call.asks[1].is_open
    call.asks[1].answer(b"{}")
    assert not call.repeated


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
def test_an_odd_request_for_input_is_the_servers_error(result: Any) -> None:
    call = Modern(*SERVER_METHODS)
    call.begin(**result)
    assert call.reason is Reason.SERVER_ERROR
    assert not call.asks


def test_a_method_without_an_answer_ends_the_call_before_anything_is_asked() -> None:
    call = Modern(ROOTS)
    call.begin(inputRequests={"a": {"method": ROOTS}, "b": {"method": ELICIT}})
    assert call.reason is Reason.INPUT_REQUIRED
    assert call.faults[0].metadata == {"server": "s", "method": ELICIT}
    assert not call.asks


def test_a_cancelled_call_withdraws_its_questions() -> None:
    call = Modern(ROOTS)
    call.begin(inputRequests={"a": {"method": ROOTS}})
    withdrawn: list[bool] = []
    call.asks[0].on_withdrawn = lambda: withdrawn.append(True)
    call.rounds.cancel()
    assert withdrawn == [True]
    assert (call.repeated, call.faults) == ([], [])


VISIT = {"mode": "url", "url": "http://127.0.0.1/", "message": "Visit", "elicitationId": "e"}


def test_addresses_to_visit_are_questions_if_the_caller_answers_them() -> None:
    data = raw({"elicitations": [VISIT]})
    assert url_questions(data, answerable([ROOTS])) is None
    assert lacking(-32042, data, answerable([ROOTS])) == ELICIT
    assert url_questions(raw({"elicitations": []}), answerable(SERVER_METHODS)) is None
    assert url_questions(raw({"elicitations": 1}), answerable(SERVER_METHODS)) is None
    wanted = url_questions(data, answerable(SERVER_METHODS))
    assert wanted is not None
    assert json.loads(wanted) == {"inputRequests": {"0": {"method": ELICIT, "params": VISIT}}}


@pytest.mark.parametrize(
    ("answer", "goes_on"), [(b'{"action":"accept"}', True), (b'{"action":"decline"}', False)]
)
def test_a_call_is_made_again_as_it_was_once_all_addresses_were_visited(
    answer: bytes, goes_on: bool
) -> None:
    call = Modern(ELICIT)
    wanted = url_questions(raw({"elicitations": [VISIT, VISIT]}), answerable([ELICIT]))
    assert wanted is not None
    call.repeat_plainly()
    call.rounds.begin(wanted, Fault(Reason.SERVER_ERROR, "Visit first.", "yes"))
    call.asks[0].answer(b'{"action":"accept"}')
    call.asks[1].answer(answer)
    if goes_on:
        assert (call.repeated, call.faults) == ([b""], [])
    else:
        assert call.reason is Reason.SERVER_ERROR


async def test_a_call_without_questions_is_repeated_after_a_pause_that_grows() -> None:
    call = Modern()
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(1, 3):
        call.begin(requestState=str(number))
        assert len(call.repeated) == number - 1
        async with asyncio.timeout(BOUND):
            while len(call.repeated) < number:
                await asyncio.sleep(0)
    assert loop.time() - began >= 0.15
    assert call.repeated == [{"requestState": "1"}, {"requestState": "2"}]
    call.begin(requestState="3")
    call.rounds.cancel()

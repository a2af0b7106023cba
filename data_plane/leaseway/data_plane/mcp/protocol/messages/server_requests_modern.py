"""Questions that end a request: an answer that wants input, and the same call again with it.

Modern servers ask for all that they need at once. When every answer is there, the call is made
again with them and with the state that the server gave, under the same deadline (DESIGN §6).
Legacy ones may have a person visit addresses first; then the call is made again as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from mcp_types import INTERNAL_ERROR

from leaseway.data_plane.core.calls.call import SERVER_METHODS, Ask, ToolRequest
from leaseway.data_plane.mcp.protocol.messages.server_requests import input_required, params_of
from leaseway.wire.bounds import MAX_ASKS
from leaseway.wire.errors import Fault, Reason
from leaseway.wire.messages.mcp import ROOTS

MAX_ROUNDS: Final = 10
"""Times that one call may ask for input."""

_PAUSES: Final = (0.05, 0.1, 0.2, 0.25)
"""Seconds before a call is repeated that asked nothing but to be called again."""

_MAX_TEXT: Final = 2048


class _Question(msgspec.Struct):
    method: str
    params: msgspec.Raw = msgspec.Raw(b"{}")


class _Wanted(msgspec.Struct):
    inputRequests: dict[str, _Question] | None = None  # noqa: N815 - MCP's name
    requestState: str | None = None  # noqa: N815 - MCP's name


_decode: Final = msgspec.json.Decoder(_Wanted).decode
_encode: Final = msgspec.json.encode


class Rounds:
    """The rounds of one call.

    Args:
        server: The server's id.
        request: The call as it was made first.
        repeat: Makes it again, with `ToolRequest.continuation` as given.
        fail: Ends the call.
        roots: The answer to questions for roots, or None where the caller answers those.

    Attributes:
        waiting: Whether the call waits for its caller: nothing of it is at the server.
    """

    def __init__(
        self,
        server: str,
        request: ToolRequest,
        repeat: Callable[[bytes], None],
        fail: Callable[[Fault], None],
        roots: bytes | None = None,
    ) -> None:
        self.waiting = False
        self._roots = roots
        self._server = server
        self._request = request
        self._repeat = repeat
        self._fail = fail
        self._number = 0
        self._pauses = 0
        self._state: str | None = None
        self._otherwise: Fault | None = None
        self._left: set[str] = set()
        self._answers: dict[str, bytes] = {}
        self._asks: list[Ask] = []
        self._pause: asyncio.TimerHandle | None = None

    def begin(self, wanted: bytes, otherwise: Fault | None = None) -> None:
        """Ask the caller for what an answer wants, or end the call where that can't be.

        Args:
            wanted: An `input_required` result.
            otherwise: How the call ends unless everything is accepted; it is then made again
                as it was. None where the answers are the server's to judge.
        """
        self._number += 1
        self._otherwise = otherwise
        self.waiting = True
        try:
            parsed = _decode(wanted)
        except ValueError as error:
            self._give_up(self._odd(f"a request for input that can't be read ({error})"))
            return
        questions = parsed.inputRequests or {}
        fault = self._unanswerable(questions, parsed.requestState)
        if fault is not None:
            self._give_up(fault)
            return
        self._state = parsed.requestState
        if questions:
            self._pauses = 0
            self._ask(questions)
        else:
            delay = _PAUSES[min(self._pauses, len(_PAUSES) - 1)]
            self._pauses += 1
            self._pause = asyncio.get_running_loop().call_later(delay, self._go_on)

    def cancel(self) -> None:
        """Stop waiting for answers: the call has ended."""
        self.waiting = False
        asks, self._asks = self._asks, []
        for ask in asks:
            ask.withdraw()
        if self._pause is not None:
            self._pause.cancel()

    def _unanswerable(self, questions: dict[str, _Question], state: str | None) -> Fault | None:
        """Return why what a result wants can't be had."""
        if self._number > MAX_ROUNDS:
            return self._odd(f"a request for input for the {MAX_ROUNDS + 1}th time in one call")
        if not questions and state is None:
            return self._odd("a request for input that asks for nothing")
        if len(questions) > MAX_ASKS:
            return self._odd(f"{len(questions)} questions at once, more than {MAX_ASKS}")
        for question in questions.values():
            if question.method not in SERVER_METHODS:
                return self._odd("a request for input of a kind that MCP does not have")
            if params_of(question.params) is None:
                return self._odd("a request for input whose params are no JSON object")
            if question.method == ROOTS and self._roots is not None:
                continue
            if question.method not in self._request.answers:
                return input_required(self._server, self._request.name, question.method)
        return None

    def _odd(self, what: str) -> Fault:
        return Fault(
            Reason.SERVER_ERROR,
            f"The server {self._server} answered the call of {self._request.name} with {what}; "
            "report it to the server's maintainer.",
            started="yes",
            metadata={"server": self._server, "code": str(INTERNAL_ERROR)},
        )

    def _ask(self, questions: dict[str, _Question]) -> None:
        if self._roots is not None:
            known = {key for key, question in questions.items() if question.method == ROOTS}
            self._answers = dict.fromkeys(known, self._roots)
            questions = {key: each for key, each in questions.items() if key not in known}
            if not questions:
                self._go_on()
                return
        assert self._request.on_ask is not None  # it names methods that it answers
        self._left = set(questions)
        self._asks = [self._made(key, question) for key, question in questions.items()]
        for ask in tuple(self._asks):
            if ask.is_open:
                self._request.on_ask(ask)

    def _made(self, key: str, question: _Question) -> Ask:
        def answer(result: bytes) -> None:
            if self.waiting:
                self._answers[key] = result
                self._left.discard(key)
                if not self._left:
                    self._go_on()

        def refuse(_code: int, message: str) -> None:
            if self.waiting:
                self._give_up(self._refused(question.method, message))

        return Ask(question.method, params_of(question.params) or b"{}", answer, refuse)

    def _refused(self, method: str, message: str) -> Fault:
        return Fault(
            Reason.INPUT_REQUIRED,
            f"{self._server}:{self._request.name} asked its caller for input ({method}) and got "
            f"none: {message[:_MAX_TEXT]}",
            started="yes",
            metadata={"server": self._server, "method": method},
        )

    def _give_up(self, fault: Fault) -> None:
        self.cancel()
        self._fail(fault)

    def _go_on(self) -> None:
        answers, self._answers = self._answers, {}
        self._asks = []
        if self._otherwise is not None and not all(map(_accepts, answers.values())):
            self._give_up(self._otherwise)
            return
        self.waiting = False
        parts: list[bytes] = []
        if answers and self._otherwise is None:
            members = b",".join(b"%b:%b" % (_encode(key), each) for key, each in answers.items())
            parts.append(b',"inputResponses":{%b}' % members)
        if self._state is not None:
            parts.append(b',"requestState":%b' % _encode(self._state))
        self._repeat(b"".join(parts))


class _Action(msgspec.Struct):
    action: str = ""


_decode_action: Final = msgspec.json.Decoder(_Action).decode


def _accepts(answer: bytes) -> bool:
    try:
        return _decode_action(answer).action == "accept"
    except ValueError:
        return False

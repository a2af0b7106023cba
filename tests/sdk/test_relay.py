"""The relay of the SDK: bytes in, bytes out, and the events of a call."""

from __future__ import annotations

import asyncio
import inspect

import pytest
from tests.calls import ReceivedCall
from tests.sdk.asking import ELICIT, asking
from tests.sdk.fakes import BOUND, FakeControlPlane, FakeWorker, never, until

from leaseway.sdk import AsyncClient, InvalidRequest, LeaseLost, LeasewayError, ServerError, relay
from leaseway.sdk.relay import RelayEvents, ServerRequest
from leaseway.v1 import execution_pb2
from leaseway.wire.errors import Fault, Reason

PUBLIC = """
BegunCall CallWay IntroductionList LeaseItems McpRequest PlacedCall RegistryVersion RelayClient
RelayEvents ServerIntroduction ServerRequest SessionEnds SharedItems ToolIndex announce_roots
begin_call begin_outside call_placed call_tool call_way hear_servers hear_session_ends
leased_servers leave_leases list_introductions list_lease_items list_shared own_request
prompt_completion prompt_request read_request send_request share_session_ends speak_for
template_completion watch_registry with_lease_items
"""


class Recorded(RelayEvents):
    """Records events; answers requests with `reply` unless it is None."""

    def __init__(self, reply: bytes | None = None) -> None:
        self.reply = reply
        self.seen: list[object] = []
        self.open: dict[int, ServerRequest] = {}

    def on_progress(self, progress: float, total: float | None, message: str, extra: bytes) -> None:
        self.seen.append((progress, total, message))

    def on_log(self, level: str, logger: str, data: bytes, extra: bytes) -> None:
        self.seen.append((level, logger, data))

    def handle_request(self, request: ServerRequest) -> None:
        self.open[request.ask_id] = request
        if self.reply is not None:
            request.answer(self.reply)

    def reset(self) -> None:
        self.open.clear()
        self.seen.append("reset")


def test_the_public_names_of_the_relay_are_these_and_documented() -> None:
    assert relay.__all__ == PUBLIC.split()
    for name in relay.__all__:
        assert inspect.getdoc(getattr(relay, name)), name


async def test_arguments_and_results_keep_their_bytes(
    client: AsyncClient, worker: FakeWorker
) -> None:
    strange = b'{ "b":1.0,  "a":[1e2] }'
    received: list[bytes] = []

    def answer(_worker: FakeWorker, _call: ReceivedCall, arguments: bytes) -> bytes:
        received.append(arguments)
        return b'{"content" : [ ],"x": 1.50}'

    worker.answer = answer
    result = await relay.call_tool(client, "time_now", strange, RelayEvents())
    assert received == [strange]
    assert result.payload == b'{"content" : [ ],"x": 1.50}'


async def test_progress_logs_and_requests_reach_the_events_of_their_call(
    client: AsyncClient, worker: FakeWorker
) -> None:
    ask = asking(ELICIT, b'{"message": "?"}')

    async def answer(fake: FakeWorker, call: ReceivedCall, arguments: bytes) -> bytes:
        fake.say(call, execution_pb2.Progress(progress=1, message="one"))
        fake.say(call, execution_pb2.Progress(progress=2, total=2))
        fake.say(call, execution_pb2.LogMessage(level="info", data=b'{"n":1}'))
        answered = ask(fake, call, arguments)
        return answered if isinstance(answered, bytes) else await answered

    worker.answer = answer
    events = Recorded(reply=b'{"action":"decline"}')
    events.wants_progress, events.log_level, events.answers = True, "info", (ELICIT,)
    result = await relay.call_tool(client, "time_now", b"{}", events)
    assert result.text == '{"action":"decline"}'
    assert [seen for seen in events.seen if isinstance(seen, tuple) and len(seen) == 3] == [
        (1.0, None, "one"),
        (2.0, 2.0, ""),
        ("info", "", b'{"n":1}'),
    ]
    assert (worker.calls[0].wants_progress, list(worker.calls[0].answers)) == (True, [ELICIT])


async def test_events_without_handlers_reject_the_requests_of_servers(
    client: AsyncClient, worker: FakeWorker
) -> None:
    worker.answer = asking(ELICIT)
    result = await relay.call_tool(client, "time_now", b"{}", RelayEvents())
    assert result.text == "refused: This caller does not answer elicitation/create."


@pytest.mark.parametrize("ends", ["with a result", "with a failure", "by cancellation"])
async def test_the_events_are_reset_however_a_call_ends(
    client: AsyncClient, worker: FakeWorker, ends: str
) -> None:
    events = Recorded()
    if ends == "with a failure":
        worker.faults = [Fault(Reason.SERVER_ERROR, "It broke.", "yes")]
        with pytest.raises(ServerError):
            await relay.call_tool(client, "time_now", b"{}", events)
    elif ends == "by cancellation":
        worker.answer = never
        call = asyncio.ensure_future(relay.call_tool(client, "time_now", b"{}", events))
        await until(lambda: worker.calls)
        call.cancel()
        await asyncio.wait([call], timeout=BOUND)
    else:
        await relay.call_tool(client, "time_now", b"{}", events)
    assert events.seen[-1] == "reset"


async def test_the_end_of_a_lease_is_raised_once_and_then_a_new_one_is_acquired(
    client: AsyncClient, worker: FakeWorker
) -> None:
    session = client.session("s")
    await relay.call_tool(session, "desk_open", b"{}", RelayEvents())
    (lease,) = worker.leases
    del worker.leases[lease]
    with pytest.raises(LeaseLost):
        await relay.call_tool(session, "desk_open", b"{}", RelayEvents())
    result = await relay.call_tool(session, "desk_open", b"{}", RelayEvents())
    assert result.new_lease is not None
    assert result.new_lease.id != lease


@pytest.mark.parametrize(
    "build",
    [
        lambda name: relay.prompt_request(name),
        lambda name: relay.read_request(name),
        lambda name: relay.prompt_completion(name, "a", "v"),
        lambda name: relay.template_completion(name, "a", "v"),
    ],
)
def test_a_request_for_a_name_that_is_too_long_is_refused_as_an_error_of_the_sdk(
    build: type[relay.McpRequest],
) -> None:
    with pytest.raises(InvalidRequest):
        build("x" * 8193)  # type: ignore[call-arg]


def test_an_own_request_tells_its_answer_or_that_it_was_rejected() -> None:
    heard: list[bytes] = []
    asked = relay.own_request(7, ELICIT, b'{"message":"?"}', heard.append)
    assert (asked.ask_id, asked.method, asked.params_json) == (7, ELICIT, b'{"message":"?"}')
    asked.answer(b'{"action":"accept"}')
    asked.reject("Nobody is there.")
    assert heard == [b'{"action":"accept"}', b""]


async def test_session_ends_of_an_unreachable_control_plane_are_an_error_of_the_sdk(
    client: AsyncClient, plane: FakeControlPlane
) -> None:
    await plane.stop()
    with pytest.raises(LeasewayError):
        await relay.share_session_ends(client, ["a"], ["b"], timeout=0.3)


async def test_a_watch_of_the_registry_ends_with_its_client(client: AsyncClient) -> None:
    version = relay.watch_registry(client)
    await client.close()
    assert version.ended

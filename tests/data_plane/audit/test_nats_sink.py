"""The sink in a stream of NATS JetStream, a foreign process."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ConsumerInfo
from nats.js.client import JetStreamContext
from tests.certificates import Authority
from tests.conftest import BOUND
from tests.data_plane.audit.shipped import RUN, Shipped, eventually, numbers_in
from tests.nats_server import PASSWORD, STREAM, SUBJECT, NatsServer, nats_server

from leaseway.data_plane.audit.sinks import nats
from leaseway.data_plane.audit.sinks.addresses import open_sink
from leaseway.data_plane.audit.sinks.port import ObjectExists, Sink, SinkError
from leaseway.data_plane.audit.verifying import verify_sink


def opened(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> Sink:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return open_sink(server.sink)


async def test_an_object_is_stored_once_and_listed_with_its_size_below_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_server(tmp_path) as server:
        sink = opened(server, monkeypatch)
        assert [stored async for stored in sink.objects()] == []
        await sink.put("w.1.abc/000001.000000000000", b"one\n")
        with pytest.raises(ObjectExists):  # by its id, within the stream's window
            await sink.put("w.1.abc/000001.000000000000", b"one\n")
        await sink.put("w.1.abc/000001.000000000004", b"x" * sink.part_size)
        await sink.put("w2.def/000001.000000000000", b"other\n")
        assert await sink.get("w.1.abc/000001.000000000000") == b"one\n"
        assert await sink.get("w.1.abc/000001.000000000004") == b"x" * sink.part_size
        assert [(stored.name, stored.size) async for stored in sink.objects("w.1.abc/")] == [
            ("w.1.abc/000001.000000000000", 4),
            ("w.1.abc/000001.000000000004", sink.part_size),
        ]
        assert len([stored async for stored in sink.objects()]) == 3
        with pytest.raises(SinkError, match="cannot be read"):
            await sink.get("w3.ghi/000001.000000000000")
        with pytest.raises(SinkError, match="raise the server's max_payload"):
            await sink.put("w4.jkl/000001.000000000000", b"x" * 2_000_000)
        await sink.aclose()


async def test_an_object_whose_id_the_stream_has_forgotten_is_not_stored_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_server(tmp_path, duplicate_window=0.1) as server:
        sink = opened(server, monkeypatch)
        await sink.put("w1.abc/000001.000000000000", b"one\n")
        await asyncio.sleep(0.3)  # longer than the window, in which the id alone decides
        with pytest.raises(ObjectExists):
            await sink.put("w1.abc/000001.000000000000", b"two\n")
        assert await sink.get("w1.abc/000001.000000000000") == b"one\n"
        await sink.aclose()


async def test_objects_that_are_on_their_way_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server counts a message as delivered before it is here."""
    ask = JetStreamContext.PushSubscription.consumer_info

    async def ask_late(messages: Any) -> ConsumerInfo:
        async with asyncio.timeout(BOUND):
            while (info := await ask(messages)).num_pending:
                await asyncio.sleep(0.01)
        return info

    async with nats_server(tmp_path) as server:
        sink = opened(server, monkeypatch)
        await sink.put("w1.abc/000001.000000000000", b"one\n")
        monkeypatch.setattr(JetStreamContext.PushSubscription, "consumer_info", ask_late)
        monkeypatch.setattr(JetStreamContext.PushSubscription, "pending_msgs", 0)
        assert len([stored async for stored in sink.objects()]) == 1
        await sink.aclose()


async def test_what_the_server_lost_sight_of_is_shipped_in_order_and_once_after_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "nats"
    store.mkdir()
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(nats_server(store))
        sink = opened(server, monkeypatch)
        shipped, problems = Shipped(tmp_path / "audit", sink=sink, file_size=700), list[str]()
        shipped.shipper.problem.connect(problems.append)
        task = asyncio.create_task(shipped.shipper.run())
        shipped.write(0)
        await eventually(lambda: shipped.backlog.size == 0)
        await server.kill()
        for number in range(1, 20):
            shipped.write(number)
        await eventually(lambda: problems)
        await stack.enter_async_context(nats_server(store, int(server.url.rpartition(":")[2])))
        await eventually(lambda: shipped.backlog.size == 0)
        shipped.log.close()
        await shipped.shipper.finish()
        task.cancel()
        report = (await verify_sink(sink))[RUN]
        assert (report.faults, report.remarks) == ([], [])
        stored = {stored.name: await sink.get(stored.name) async for stored in sink.objects()}
        assert numbers_in(stored) == list(range(20))
        assert PASSWORD not in "".join(problems)
        await sink.aclose()


@pytest.mark.parametrize("settings", [{"retention": "workqueue"}, {"storage": "memory"}])
async def test_a_stream_that_does_not_keep_what_it_acknowledges_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    async with nats_server(tmp_path, **settings) as server:
        sink = opened(server, monkeypatch)
        with pytest.raises(SinkError, match="does not keep what it acknowledges"):
            await sink.put("w1.abc/000001.000000000000", b"one\n")


async def test_a_wrong_password_and_an_unknown_setting_are_errors_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_server(tmp_path) as server:
        opened(server, monkeypatch)
        monkeypatch.delenv("LEASEWAY_AUDIT_NATS_PASSWORD_FILE")
        monkeypatch.setenv("LEASEWAY_AUDIT_NATS_PASSWORD", "wrong-and-secret")
        with pytest.raises(SinkError) as caught:
            await open_sink(server.sink).put("w1.abc/000001.000000000000", b"one\n")
        assert "cannot be reached (Error). The server refuses the credentials" in str(caught.value)
        assert "wrong-and-secret" not in str(caught.value)
        monkeypatch.setenv("LEASEWAY_AUDIT_NATS_PASWORD", "wrong-and-secret")
        with pytest.raises(SinkError, match="Unknown settings: LEASEWAY_AUDIT_NATS_PASWORD"):
            open_sink(server.sink)


async def test_a_password_that_is_replaced_is_read_for_the_next_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_server(tmp_path) as server:
        sink = opened(server, monkeypatch)
        await sink.put("w1.abc/000001.000000000000", b"one\n")
        config = tmp_path / "nats.conf"
        config.write_text(config.read_text().replace(PASSWORD, "another-one"))
        server.process.send_signal(signal.SIGHUP)  # it ends the connections of the old password
        await eventually_refused(sink)
        (tmp_path / "password").write_text("another-one\n")
        await sink.put("w1.abc/000001.000000000004", b"two\n")
        assert len([stored async for stored in sink.objects()]) == 2
        await sink.aclose()


async def eventually_refused(sink: Sink) -> None:
    """Ask until the server refuses to log in."""
    async with asyncio.timeout(BOUND):
        while True:
            try:
                await sink.put("w1.abc/000001.000000000000", b"one\n")
            except ObjectExists:
                continue
            except SinkError as error:  # or the connection ends before an answer
                if "cannot be reached" in str(error):
                    return


async def test_an_error_says_what_an_operator_must_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "_TIMEOUT", 1.0)
    async with nats_server(tmp_path, max_bytes=1_500, discard="new") as server:
        sink = opened(server, monkeypatch)
        await sink.put("w1.abc/000001.000000000000", b"x" * 1_000)
        with pytest.raises(SinkError, match=r"It is full: raise max_bytes"):
            await sink.put("w1.abc/000001.000000001000", b"x" * 1_000)
        elsewhere = open_sink(f"{server.url}/{STREAM}/elsewhere")
        with pytest.raises(SinkError, match="No stream of the server has the subject"):
            await elsewhere.put("w1.abc/000001.000000000000", b"x")
        await sink.aclose()
        await elsewhere.aclose()
        config = tmp_path / "nats.conf"
        user = f"user: leaseway, password: {PASSWORD}"
        only = '{publish: ["$JS.API.STREAM.INFO.*"]}'
        granted = f"users: [{{ {user}, permissions: {only} }}]"
        config.write_text(config.read_text().replace(user, granted))
        server.process.send_signal(signal.SIGHUP)

        async def is_denied() -> bool:
            with pytest.raises(SinkError) as caught:
                await sink.put("w1.abc/000001.000000001000", b"x" * 1_000)
            return "The server denies it to the user" in str(caught.value)

        async with asyncio.timeout(BOUND):
            while not await is_denied():
                pass
        await sink.aclose()


async def test_over_tls_the_server_must_have_a_certificate_of_the_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_server(tmp_path, authority=Authority("ours")) as server:
        assert server.url.startswith("tls://")
        sink = opened(server, monkeypatch)
        await sink.put("w1.abc/000001.000000000000", b"one\n")
        assert await sink.get("w1.abc/000001.000000000000") == b"one\n"
        await sink.aclose()
        other = Authority("other").write(tmp_path / "other.pem")
        for authority in (str(other), ""):  # another one, and those of the system
            monkeypatch.setenv("LEASEWAY_AUDIT_NATS_CA", authority)
            with pytest.raises(SinkError, match="cannot be reached"):
                await open_sink(server.sink).put("w1.abc/000001.000000000004", b"two\n")


async def test_tls_is_required_of_a_server_that_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_server(tmp_path) as server:
        opened(server, monkeypatch)
        sink = open_sink(server.sink.replace("nats://", "tls://"))
        with pytest.raises(SinkError, match="cannot be reached"):
            await sink.put("w1.abc/000001.000000000000", b"one\n")


@pytest.mark.parametrize("limits", [{"max_payload": "16KB"}, {"max_msg_size": 16_000}], ids=str)
async def test_a_record_that_is_larger_than_a_message_is_shipped_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    async with nats_server(tmp_path, **limits) as server:
        sink = opened(server, monkeypatch)
        shipped, problems = Shipped(tmp_path / "audit", sink=sink), list[str]()
        shipped.shipper.problem.connect(problems.append)
        shipped.write(1)
        shipped.log.write([b'"n":2,"text":"%b"' % (b"x" * 70_000)])
        shipped.write(3)
        async with asyncio.timeout(BOUND):
            await shipped.shipper.ship_all()
        report = (await verify_sink(sink))[RUN]
        assert (report.faults, report.last, problems) == ([], 4, [])
        stored = {stored.name: await sink.get(stored.name) async for stored in sink.objects()}
        assert numbers_in(stored) == [1, 2, 3]
        await sink.aclose()


class Link:
    """Passes on connections to a server; it can drop those that are open, and tells no end."""

    def __init__(self, server: NatsServer) -> None:
        self._target = int(server.url.rpartition(":")[2])
        self._writers: list[asyncio.StreamWriter] = []
        self._passing: list[asyncio.Task[None]] = []

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[int]:
        """Listen; yield the port."""
        listening = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield listening.sockets[0].getsockname()[1]
        finally:
            listening.close()
            self.drop()
            for writer in self._writers:
                writer.transport.abort()

    def drop(self) -> None:
        for task in self._passing:
            task.cancel()

    async def _serve(self, inward: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        answers, outward = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [back, outward]
        for reader, writer in ((inward, outward), (answers, back)):
            self._passing.append(asyncio.create_task(_pass_on(reader, writer)))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(64 * 1024):
        writer.write(part)


async def test_a_connection_that_the_network_has_dropped_is_replaced_after_one_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "_TIMEOUT", 0.5)
    async with nats_server(tmp_path) as server:
        opened(server, monkeypatch)
        link = Link(server)
        async with link.open() as port:
            sink = open_sink(f"nats://127.0.0.1:{port}/{STREAM}/{SUBJECT}")
            await sink.put("w1.abc/000001.000000000000", b"one\n")
            link.drop()
            with pytest.raises(SinkError, match="cannot be written"):
                await sink.put("w1.abc/000001.000000000004", b"two\n")
            await sink.put("w1.abc/000001.000000000004", b"two\n")
            assert len([stored async for stored in sink.objects()]) == 2
            await sink.aclose()

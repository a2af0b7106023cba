"""OpenAPI documents from web servers that are slow or fail."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.conftest import BOUND

from leaseway.control_plane.config.openapi.documents import Documents, DocumentUnavailable
from leaseway.control_plane.config.openapi.operations import OperationSelection

EVERYTHING = OperationSelection()


def document(*names: str) -> bytes:
    operation = {"responses": {"200": {"description": "ok"}}}
    paths = {f"/{name}": {"get": {**operation, "operationId": name}} for name in names}
    head = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}}
    return json.dumps({**head, "servers": [{"url": "http://x"}], "paths": paths}).encode()


class Web:
    """A web server with one document, whose answers the test holds back."""

    def __init__(self) -> None:
        self.content = document("first")
        self.status = 200
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.requests = 0
        web = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.requests += 1
                web.may_answer.wait(BOUND)
                self.send_response(web.status)
                self.end_headers()
                self.wfile.write(web.content)

            def log_message(self, *_: Any) -> None:
                """Write nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/openapi.json"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    yield web
    web.may_answer.set()
    web.server.shutdown()
    web.server.server_close()


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def wait_until(condition: Callable[[], bool]) -> None:
    ended = threading.Event()
    for _ in range(int(BOUND / 0.01)):
        if condition():
            return
        ended.wait(0.01)
    raise AssertionError("The condition does not hold in time.")


def tools(documents: Documents, web: Web) -> list[str]:
    return [tool.name for tool in documents.load(web.url, EVERYTHING).imported.tools]


def test_a_slow_document_is_waited_for_shortly_and_announced_when_it_is_there(web: Web) -> None:
    documents = Documents()
    documents.fetch_in_background(patience=0.01)
    web.may_answer.clear()
    for _ in range(2):
        with pytest.raises(DocumentUnavailable, match="still being fetched"):
            tools(documents, web)
    assert documents.changes == 0
    web.may_answer.set()
    wait_until(lambda: documents.changes == 1)
    assert tools(documents, web) == ["first"]
    assert (web.requests, documents.is_fetching) == (1, False)


def test_a_document_is_fetched_again_after_the_system_has_refused_a_thread(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    clock = Clock()
    documents = Documents(clock)
    documents.fetch_in_background()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(DocumentUnavailable, match="can't be fetched now"):
            tools(documents, web)
    clock.at += 6
    documents.retry()
    wait_until(lambda: documents.changes == 1)
    assert tools(documents, web) == ["first"]


def test_the_old_content_is_used_while_a_document_is_fetched_again(web: Web) -> None:
    clock = Clock()
    documents = Documents(clock)
    documents.fetch_in_background()
    assert tools(documents, web) == ["first"]
    clock.at += 301
    web.may_answer.clear()
    web.content = document("second")
    assert tools(documents, web) == ["first"]
    web.may_answer.set()
    wait_until(lambda: documents.changes == 1)
    assert tools(documents, web) == ["second"]


def test_an_unchanged_document_announces_nothing(web: Web) -> None:
    clock = Clock()
    documents = Documents(clock)
    documents.fetch_in_background()
    tools(documents, web)
    clock.at += 301
    tools(documents, web)
    wait_until(lambda: not documents.is_fetching)
    assert documents.changes == 0


@pytest.mark.parametrize("is_known", [True, False])
def test_a_failure_is_announced_once_and_tried_again_by_itself(web: Web, is_known: bool) -> None:
    clock = Clock()
    documents = Documents(clock)
    documents.fetch_in_background(patience=BOUND if is_known else 0.01)
    if is_known:
        tools(documents, web)
        clock.at += 301
    web.status = 500
    web.may_answer.clear()
    if is_known:
        assert documents.load(web.url, EVERYTHING).stale == ""
    else:
        with pytest.raises(DocumentUnavailable, match="still being fetched"):
            tools(documents, web)
    web.may_answer.set()
    wait_until(lambda: documents.changes == 1)
    before = web.requests
    for again in range(2):
        for _ in range(2):
            if is_known:
                assert "HTTP status 500" in documents.load(web.url, EVERYTHING).stale
            else:
                with pytest.raises(DocumentUnavailable, match="HTTP status 500"):
                    tools(documents, web)
            documents.retry()
        wait_until(lambda: not documents.is_fetching)
        assert (web.requests, documents.changes) == (before + again, 1), "nothing is new"
        clock.at += 5
    web.status = 200
    clock.at += 10
    documents.retry()
    wait_until(lambda: documents.changes == 2)
    assert (tools(documents, web), documents.may_change) == (["first"], False)


def test_a_document_that_is_not_in_use_any_more_is_not_tried_again(web: Web) -> None:
    clock = Clock()
    documents = Documents(clock)
    documents.fetch_in_background()
    web.status = 500
    with pytest.raises(DocumentUnavailable, match="HTTP status 500"):
        tools(documents, web)
    assert documents.may_change
    documents.begin_configuration()
    clock.at += 60
    documents.retry()
    assert (web.requests, documents.may_change) == (1, False)


def test_each_of_many_documents_is_fetched_once(web: Web) -> None:
    documents = Documents()
    documents.fetch_in_background(patience=BOUND)
    urls = [f"{web.url}?{number}" for number in range(20)]
    for url in urls * 2:
        assert documents.load(url, EVERYTHING).imported.tools
    assert (web.requests, documents.may_change) == (len(urls), False)


def test_what_a_load_went_ahead_without_is_ready_for_the_next(web: Web) -> None:
    documents = Documents()
    documents.fetch_in_background(patience=0.01)
    urls = [f"{web.url}?{number}" for number in range(17)]
    web.may_answer.clear()

    def miss(url: str) -> None:
        with pytest.raises(DocumentUnavailable, match="still being fetched"):
            documents.load(url, EVERYTHING)

    with ThreadPoolExecutor(len(urls)) as loads:
        list(loads.map(miss, urls))
    web.may_answer.set()
    wait_until(lambda: documents.changes == len(urls))
    for url in urls:
        assert documents.load(url, EVERYTHING).imported.tools
    assert web.requests == len(urls)


def test_without_a_running_plane_a_load_waits_for_the_document_or_its_failure(web: Web) -> None:
    assert tools(Documents(), web) == ["first"]
    web.may_answer.clear()
    with pytest.raises(DocumentUnavailable, match=r"not sent everything within 0\.1 s"):
        tools(Documents(timeout=0.1), web)

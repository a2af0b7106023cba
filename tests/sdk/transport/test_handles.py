"""Copies and pickles of clients, and of what they open."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import asdict, dataclass

import pytest

from leaseway.sdk import AsyncClient, Client
from leaseway.sdk.testing import FakeLeaseway, Media


@dataclass
class Settings:
    client: object


def handles(client: Client, other: AsyncClient) -> list[object]:
    return [
        client,
        client.session("job"),
        client.stream_tool("photo"),
        client.watch_tools(),
        client.read_artifact("artifacts/mcp/a/b/c.png"),
        other,
        other.session("job"),
        other.read_artifact("artifacts/mcp/a/b/c.png"),
    ]


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_handle_is_the_handle_itself(again: Callable[[object], object]) -> None:
    with FakeLeaseway() as fake:
        fake.tool(name="photo")(lambda: Media(b"x", "image/png"))
        client = fake.client()
        for handle in handles(client, AsyncClient(fake.address)):
            assert again(handle) is handle
        assert asdict(Settings(client))["client"] is client
        assert len(client.list_tools()) == 1


def test_the_error_of_a_pickled_handle_says_what_to_do_instead() -> None:
    with FakeLeaseway() as fake:
        fake.tool(name="photo")(lambda: Media(b"x", "image/png"))
        for handle in handles(fake.client(), AsyncClient(fake.address)):
            with pytest.raises(TypeError, match="Make a client in each process"):
                pickle.dumps(handle)


def test_content_for_a_model_that_was_read_is_copied_without_its_client() -> None:
    with FakeLeaseway() as fake:
        fake.tool(name="photo")(lambda: Media(b"x", "image/png"))
        content = fake.client().session("job").call_tool("photo").for_model()
        assert pickle.loads(pickle.dumps(content)) == copy.deepcopy(content) == content
        assert content[0]["type"] == "image"

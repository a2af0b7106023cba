"""URIs that parsers read differently pass no filter; others pass by their normal form."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from leaseway.spec.filters.uris import UriFilter, standard_reading

Reader = Callable[[str], str | None]

BLOCKED = UriFilter((), ["http://h/secret*", "file:///srv/secret*", "http://127.0.0.1/*"])

_NODE = """
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  let href = null;
  try { href = new URL(JSON.parse(line)).href } catch {}
  process.stdout.write(JSON.stringify(href) + "\\n");
});
"""


@pytest.mark.parametrize(
    "uri",
    [
        "http:/h/secret",
        "http:h/secret",
        "http:///h/secret",
        "http://h:/secret",
        "http://h:080/secret",
        "http://h:99999/secret",
        "http://\uff48/secret",
        "http://%68/secret",
        "http://h\\@other/secret",
        "http:\\\\h/secret",
        "%68ttp:/h/secret",
        "ht\ttp://h/secret",
        "http://h/sec\tret",
        "http://h/a%2Fb/../secret",
        "http://h/a%3Fb/../secret",
        "http://h/secret#part",
        "http://0x7f.1/",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.0.1./",
        "http://127.0.0.1",
        "file://127.0.0.1/srv/secret",
        "file://user@/srv/secret",
        "file://other/srv/secret",
        "file:srv/secret",
        "file:\\srv\\secret",
        "file://\\srv\\secret",
        "file:///C|/srv/secret",
    ],
)
def test_a_uri_that_parsers_read_differently_is_rejected(uri: str) -> None:
    assert not BLOCKED.allows(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "http://h/open",
        "http://h:8080/secret",
        "http://me:word@other.example/a?b=%5C#c",
        "https://[::1]:8443/a b",
        "https://{host}:{port}/items/{id}{?page}",
        "http://10.0.0.1/",
        "file:///srv/open/a%20b",
        "file://localhost/srv/open",
        "file:/srv/open",
        "file://{path}",
        "note:a//b\\c",
        "note://%68/a",
    ],
)
def test_a_uri_that_all_parsers_read_alike_passes(uri: str) -> None:
    assert BLOCKED.allows(uri)
    assert UriFilter([uri]).allows(uri)


def test_without_patterns_every_uri_passes() -> None:
    assert UriFilter().allows("http:h/secret")


@pytest.fixture(scope="module")
def node() -> Iterator[Reader]:
    program = shutil.which("node")
    if program is None:
        pytest.skip("needs Node for its implementation of the URL standard")
    with subprocess.Popen(
        [program, "-e", _NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def read(uri: str) -> str | None:
            stdin.write(json.dumps(uri) + "\n")
            href: str | None = json.loads(stdout.readline())
            return href

        yield read
        stdin.close()


_PIECES = st.sampled_from(
    [
        "/", "//", "\\", ":", "@", "?", "#", ".", "..", "%2e", "%2F", "%5c", "h", "H", "me",
        "80", "080", "443", "127", "0x7f", "0177", "1", "0", "secret", "srv", "open", "c:", "c|",
        "%68", "[::1]", "localhost", "*", "\t", " ", "\n", "\uff48", "\u3002", "\u00ad",
    ]
)  # fmt: skip
_URIS = st.tuples(
    st.sampled_from(["http:", "HTTP:", "https:", "ws:", "ftp:", "file:", " http:", "ht\ttp:"]),
    st.sampled_from(["", "/", "//", "///", "//h/", "//h/a/"]),
    st.lists(_PIECES, max_size=8).map("".join),
).map("".join)


def _squeezed(path: str) -> list[str]:
    return [step for step in unquote(path).split("/") if step]


@settings(max_examples=400, deadline=None)
@given(uri=_URIS)
@example("http://h/a//../secret")
@example("file:///c:/../secret")
@example("http://h/%2e%2E/secret")
def test_a_standard_reading_equals_that_of_node_and_python(node: Reader, uri: str) -> None:
    reading = standard_reading(uri)
    if reading is None:
        return
    href = node(uri)
    if href is None:
        return  # invalid by the URL standard
    standard, python, mine = urlsplit(href), urlsplit(uri.strip()), reading
    scheme, _, rest = mine.partition("://")
    host, slash, path = rest.partition("/")
    assert slash
    path = path if scheme == "file" or "?" not in uri.partition("#")[0] else path.partition("?")[0]
    assert scheme == standard.scheme == python.scheme
    default = {"http": ":80", "https": ":443", "ws": ":80", "ftp": ":21"}.get(scheme, ":")
    read_host = standard.netloc.rpartition("@")[2]
    assert host == read_host.removesuffix(".") or host + default == read_host
    if scheme != "file":
        hosts = {(url.hostname or "").removesuffix(".") for url in (standard, python)}
        assert len(hosts) == 1
        ports = {int(default[1:]) if url.port is None else url.port for url in (standard, python)}
        assert len(ports) == 1
    if "?" not in unquote(uri):
        assert _squeezed(path) == _squeezed(standard.path)

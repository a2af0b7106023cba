"""A Leaseway for tests: the real planes in the test's process, with functions as MCP servers.

    >>> from leaseway.sdk import InvalidArguments, ServerLost
    >>> from leaseway.sdk.testing import CallContext, FakeLeaseway
    >>> with FakeLeaseway() as fake:
    ...     @fake.tool
    ...     def add(a: int, b: int) -> int:
    ...         '''Add two numbers.'''
    ...         return a + b
    ...
    ...     client = fake.client()
    ...     print(client.call_tool("add", {"a": 1, "b": 2}).text)
    ...
    ...     try:
    ...         client.call_tool("add", {"a": "one", "b": 2})
    ...     except InvalidArguments as error:
    ...         print(error.violations[0].field)
    ...
    ...     fake.fail_next("add", ServerLost("It died."))
    ...     try:
    ...         client.call_tool("add", {"a": 1, "b": 2})
    ...     except ServerLost as error:
    ...         print(error.message)
    ...
    ...     browser = fake.server("browser", stateful=True, prefix="browser_")
    ...     @browser.tool(name="open")
    ...     def open_page(url: str, context: CallContext) -> str:
    ...         context.state["url"] = url
    ...         return f"opened {url}"
    ...
    ...     with client.session("chat-7") as session:
    ...         result = session.call_tool("browser_open", {"url": "http://a"})
    ...         fake.expire_lease(result.new_lease)
    ...
    ...     print([call.arguments for call in fake.calls][-1])
    3
    $.a
    It died.
    {'url': 'http://a'}

It needs the extra `leaseway[testing]`, which installs both planes.
"""

try:
    import leaseway.sdk.testing.planes  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"leaseway.sdk.testing needs {error.name}, which is not installed. Install the extra: "
        "pip install 'leaseway[testing]'."
    ) from error

# isort: split
from leaseway.sdk.testing.behaviour import Hold
from leaseway.sdk.testing.context import CallContext
from leaseway.sdk.testing.fake import FakeLeaseway
from leaseway.sdk.testing.instance import RecordedCall
from leaseway.sdk.testing.server import FakeServer
from leaseway.sdk.testing.values import Media, Reply

__all__ = [
    "CallContext",
    "FakeLeaseway",
    "FakeServer",
    "Hold",
    "Media",
    "RecordedCall",
    "Reply",
]

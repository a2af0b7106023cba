"""A server of images and sounds, on the official package: what tools return beside text."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
WAV = b"RIFF" + struct.pack("<I", 36) + b"WAVEfmt " + bytes(24)


def png(red: int, green: int, blue: int) -> bytes:
    """Return a picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(bytes([0, red, green, blue]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def image(content: bytes, mime: str = "image/png") -> types.ImageContent:
    return types.ImageContent(type="image", data=base64.b64encode(content).decode(), mime_type=mime)


def text(words: str) -> types.TextContent:
    return types.TextContent(type="text", text=words)


def gallery(arguments: dict[str, Any]) -> list[types.ContentBlock]:
    sound = types.AudioContent(
        type="audio", data=base64.b64encode(WAV).decode(), mime_type="audio/wav"
    )
    return [text("Look:"), image(png(255, 0, 0)), sound, image(SVG, "image/svg+xml")]


def pixel(arguments: dict[str, Any]) -> list[types.ContentBlock]:
    return [image(png(*arguments["color"]))]


def large(arguments: dict[str, Any]) -> list[types.ContentBlock]:
    return [image(bytes(range(256)) * (int(arguments["size"]) // 256))]


def broken(arguments: dict[str, Any]) -> list[types.ContentBlock]:
    return [types.ImageContent(type="image", data="no base64!", mime_type="image/png")]


GREEN = "pictures://green"
TOOLS = {"gallery": gallery, "pixel": pixel, "large": large, "broken": broken}


async def list_tools(_context: Any, _params: Any) -> types.ListToolsResult:
    tools = [types.Tool(name=name, input_schema={"type": "object"}) for name in TOOLS]
    return types.ListToolsResult(tools=tools, ttl_ms=0, cache_scope="public")


async def call_tool(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    return types.CallToolResult(content=TOOLS[params.name](params.arguments or {}))


async def list_prompts(_context: Any, _params: Any) -> types.ListPromptsResult:
    prompts = [types.Prompt(name="describe")]
    return types.ListPromptsResult(prompts=prompts, ttl_ms=0, cache_scope="public")


async def get_prompt(_context: Any, _params: Any) -> types.GetPromptResult:
    shown = types.PromptMessage(role="user", content=image(png(0, 0, 255)))
    return types.GetPromptResult(messages=[shown])


async def list_resources(_context: Any, _params: Any) -> types.ListResourcesResult:
    resources = [types.Resource(uri=GREEN, name="green", mime_type="image/png")]
    return types.ListResourcesResult(resources=resources, ttl_ms=0, cache_scope="public")


async def read_resource(_context: Any, _params: Any) -> types.ReadResourceResult:
    blob = base64.b64encode(png(0, 255, 0)).decode()
    contents = types.BlobResourceContents(uri=GREEN, blob=blob, mime_type="image/png")
    return types.ReadResourceResult(contents=[contents], ttl_ms=0, cache_scope="public")


async def main() -> None:
    server: Server[Any] = Server(
        "pictures",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)

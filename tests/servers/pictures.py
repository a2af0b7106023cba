"""A stdio server of images and sounds, standard library only, for clients of either era."""

from __future__ import annotations

import base64
import json
import struct
import sys
import zlib
from typing import Any

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


def media(kind: str, mime: str, content: bytes) -> dict[str, Any]:
    return {"type": kind, "data": base64.b64encode(content).decode(), "mimeType": mime}


def image(content: bytes) -> dict[str, Any]:
    return media("image", "image/png", content)


def gallery(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    text = {"type": "text", "text": "Look:"}
    svg = media("image", "image/svg+xml", SVG)
    return [text, image(png(255, 0, 0)), media("audio", "audio/wav", WAV), svg]


def pixel(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    return [image(png(*arguments["color"]))]


def large(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    return [image(bytes(range(256)) * (int(arguments["size"]) // 256))]


def broken(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**image(b""), "data": "no base64!"}]


GREEN = {"uri": "pictures://green", "mimeType": "image/png"}
TOOLS = {"gallery": gallery, "pixel": pixel, "large": large, "broken": broken}


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a request, or None if the method is unknown."""
    capabilities: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}
    if method == "initialize":
        info = {"name": "pictures", "version": "0"}
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": capabilities,
            "serverInfo": info,
        }
    if method == "server/discover":
        return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    if method == "tools/call":
        return {"content": TOOLS[params["name"]](params.get("arguments") or {})}
    if method == "prompts/list":
        return {"prompts": [{"name": "describe"}]}
    if method == "prompts/get":
        return {"messages": [{"role": "user", "content": image(png(0, 0, 255))}]}
    if method == "resources/list":
        return {"resources": [{**GREEN, "name": "green"}]}
    if method == "resources/templates/list":
        return {"resourceTemplates": []}
    if method == "resources/read":
        blob = base64.b64encode(png(0, 255, 0)).decode()
        return {"contents": [{**GREEN, "blob": blob}]}
    return None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        result = result_of(message["method"], message.get("params") or {})
        if result is None:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        else:
            modern = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            answer["result"] = {**modern, **result}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()

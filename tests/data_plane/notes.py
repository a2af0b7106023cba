"""The server `notes` with a prompt and resources: serve it, follow its resources."""

from __future__ import annotations

import json
from typing import Any

from leaseway.spec.model import ServerSpec
from leaseway.v1 import sync_pb2
from leaseway.wire.errors import Fault

Bench = Any
Caller = Any
GREET = b'{"name":"greet","x-own":[1]}'
NOTE = b'{"uri":"note://a","name":"a"}'
TEMPLATE = b'{"uriTemplate":"note://{id}","name":"note"}'


def offering(bench: Bench, spec: ServerSpec, *blacklist: str) -> sync_pb2.Upsert:
    """Return a spec whose server has a prompt and a resource."""
    upsert: sync_pb2.Upsert = bench.upsert(spec)
    toolset = upsert.toolset
    toolset.recorded_prompts.append(GREET)
    toolset.prompts.add(original_name="greet", name="own_greet")
    toolset.recorded_resources.append(NOTE)
    toolset.recorded_templates.append(TEMPLATE)
    toolset.resource_filter.blacklist.extend(blacklist)
    upsert.hashes.toolset_hash += "".join(blacklist)
    return upsert


async def serve(bench: Bench, *, shared: bool = True, **fields: Any) -> ServerSpec:
    spec: ServerSpec = bench.spec("notes", shared=shared, **fields)
    await bench.push(offering(bench, spec, "note://secret/*"))
    return spec


def about(uri: str, method: str = "resources/read") -> dict[str, Any]:
    return {"method": method, "arguments": json.dumps({"uri": uri}).encode()}


async def follow(caller: Caller, uri: str = "note://a", **fields: Any) -> int:
    """Follow a resource; return the call once the subscription holds."""
    call_id: int = await caller.begin("notes", uri, **about(uri, "resources/subscribe"), **fields)
    await caller.until(lambda: told(caller, call_id) or caller.results[call_id].done())
    return call_id


def told(caller: Caller, call_id: int) -> list[str]:
    return [
        update.uri
        for message in caller.frames
        for update in message.updates
        if update.call_id == call_id
    ]


async def end_of(caller: Caller, call_id: int) -> Fault:
    from leaseway.wire.status import fault_from_status

    result = await caller.result(call_id)
    return fault_from_status(result.status)

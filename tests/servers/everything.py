"""The server for the official conformance suite, on the official package.

Over streamable HTTP on the given port, or on a free one, and prints it; with `--stdio` over stdin
and stdout.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import re
import secrets
import socket
import struct
import sys
import zlib

import mcp_types as types
from mcp.server import Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

SECRET = secrets.token_bytes(16)  # a state is worth nothing to another process
bus = InMemorySubscriptionBus()
extra = {"tools": 0, "prompts": 0}


def _chunk(kind, data):
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0))
    + _chunk(b"IDAT", zlib.compress(b"\x00\xff\x00\x00"))
    + _chunk(b"IEND", b"")
).decode()
WAV = base64.b64encode(
    b"RIFF"
    + struct.pack("<I", 36)
    + b"WAVEfmt "
    + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 8000, 1, 8)
    + b"data"
    + struct.pack("<I", 0)
).decode()


def form(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


def text(value, is_error=False):
    content = [types.TextContent(type="text", text=value)]
    return types.CallToolResult(content=content, is_error=is_error)


def embedded(uri, mime_type, value):
    contents = types.TextResourceContents(uri=uri, mime_type=mime_type, text=value)
    return types.EmbeddedResource(type="resource", resource=contents)


def image():
    return types.ImageContent(type="image", data=PNG, mime_type="image/png")


def ask_person(message, **properties):
    params = types.ElicitRequestFormParams(message=message, requested_schema=form(**properties))
    return types.ElicitRequest(params=params)


def ask_model(message, tokens=100):
    content = types.TextContent(type="text", text=message)
    messages = [types.SamplingMessage(role="user", content=content)]
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=messages, max_tokens=tokens)
    )


def wanted(state=None, **questions):
    return types.InputRequiredResult(input_requests=questions or None, request_state=state)


def signed(value):
    return f"{value}.{hmac.new(SECRET, value.encode(), hashlib.sha256).hexdigest()}"


def opened(state):
    value, _, _ = (state or "").rpartition(".")
    if not hmac.compare_digest(signed(value), state or ""):
        raise MCPError(types.INVALID_PARAMS, "requestState was tampered with")
    return value


def answer(params, key, kind):
    given = (params.input_responses or {}).get(key)
    return given if isinstance(given, kind) else None


# Tools: each a coroutine of (context, arguments, params).


async def simple_text(context, arguments, params):
    return text("This is a simple text response for testing.")


async def image_content(context, arguments, params):
    return types.CallToolResult(content=[image()])


async def audio_content(context, arguments, params):
    content = types.AudioContent(type="audio", data=WAV, mime_type="audio/wav")
    return types.CallToolResult(content=[content])


async def embedded_resource(context, arguments, params):
    resource = embedded(
        "test://embedded-resource", "text/plain", "This is an embedded resource content."
    )
    return types.CallToolResult(content=[resource])


async def multiple_content_types(context, arguments, params):
    data = json.dumps({"test": "data", "value": 123})
    content = [
        types.TextContent(type="text", text="Multiple content types test:"),
        image(),
        embedded("test://mixed-content-resource", "application/json", data),
    ]
    return types.CallToolResult(content=content)


async def with_logging(context, arguments, params):
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await context.session.send_log_message(
            "info", message, related_request_id=context.request_id
        )
        await asyncio.sleep(0.05)
    return text("Logged.")


async def logging_tool(context, arguments, params):
    await context.session.send_log_message("info", "logged", related_request_id=context.request_id)
    return text("Logged.")


async def with_progress(context, arguments, params):
    for step in (0, 50, 100):
        await context.session.report_progress(step, 100)
        await asyncio.sleep(0.05)
    return text("Done.")


async def error_handling(context, arguments, params):
    return text("This tool intentionally returns an error for testing", is_error=True)


async def sampling(context, arguments, params):
    asked = ask_model(arguments["prompt"])
    result = await context.session.create_message(
        asked.params.messages, max_tokens=100, related_request_id=context.request_id
    )
    return text(f"LLM response: {result.content.text}")


async def _elicit(context, message, schema):
    result = await context.session.elicit_form(message, schema, context.request_id)
    return f"action={result.action}, content={json.dumps(result.content)}"


async def elicitation(context, arguments, params):
    schema = form(
        username={"type": "string", "description": "User's response"},
        email={"type": "string", "description": "User's email address"},
    )
    return text(f"User response: {await _elicit(context, arguments['message'], schema)}")


async def elicitation_defaults(context, arguments, params):
    schema = form(
        name={"type": "string", "default": "John Doe"},
        age={"type": "integer", "default": 30},
        score={"type": "number", "default": 95.5},
        status={"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        verified={"type": "boolean", "default": True},
    )
    return text(f"Elicitation completed: {await _elicit(context, 'Who are you?', schema)}")


async def elicitation_enums(context, arguments, params):
    options = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{n}", "title": f"{t} Option"}
        for n, t in ((1, "First"), (2, "Second"), (3, "Third"))
    ]
    schema = form(
        untitledSingle={"type": "string", "enum": options},
        titledSingle={"type": "string", "oneOf": titled},
        legacyEnum={
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        untitledMulti={"type": "array", "items": {"type": "string", "enum": options}},
        titledMulti={"type": "array", "items": {"anyOf": titled}},
    )
    return text(f"Elicitation completed: {await _elicit(context, 'Choose.', schema)}")


async def missing_capability(context, arguments, params):
    capabilities = context.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        data = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, "This tool needs sampling.", data)
    return text("fine")


async def streaming_elicitation(context, arguments, params):
    await context.session.report_progress(1, 2)
    return wanted(user_name=ask_person("What is your name?", name={"type": "string"}))


async def trigger_tool_change(context, arguments, params):
    extra["tools"] += 1
    await bus.publish(ToolsListChanged())
    return text("changed")


async def trigger_prompt_change(context, arguments, params):
    extra["prompts"] += 1
    await bus.publish(PromptsListChanged())
    return text("changed")


async def input_elicitation(context, arguments, params):
    given = answer(params, "user_name", types.ElicitResult)
    if given is None or not (given.content or {}).get("name"):
        return wanted(user_name=ask_person("What is your name?", name={"type": "string"}))
    return text(f"Hello, {given.content['name']}!")


async def input_sampling(context, arguments, params):
    given = (params.input_responses or {}).get("capital_question")
    if given is None:
        return wanted(capital_question=ask_model("What is the capital of France?"))
    return text(f"The model said: {given.content.text}")


async def input_list_roots(context, arguments, params):
    given = answer(params, "client_roots", types.ListRootsResult)
    if given is None:
        return wanted(client_roots=types.ListRootsRequest())
    return text(f"Roots: {', '.join(str(root.uri) for root in given.roots)}")


async def input_request_state(context, arguments, params):
    if answer(params, "confirm", types.ElicitResult) is None:
        return wanted(
            signed("confirm"), confirm=ask_person("Please confirm", ok={"type": "boolean"})
        )
    opened(params.request_state)
    return text("state-ok")


async def input_multiple(context, arguments, params):
    given = params.input_responses or {}
    if {"user_name", "greeting", "client_roots"} - given.keys():
        return wanted(
            signed("multiple"),
            user_name=ask_person("What is your name?", name={"type": "string"}),
            greeting=ask_model("Generate a greeting", 50),
            client_roots=types.ListRootsRequest(),
        )
    opened(params.request_state)
    return text("All three were answered.")


async def input_multi_round(context, arguments, params):
    step1, step2 = (answer(params, key, types.ElicitResult) for key in ("step1", "step2"))
    if params.request_state is None or (step1 is None and step2 is None):
        return wanted(
            signed("1"), step1=ask_person("Step 1: What is your name?", name={"type": "string"})
        )
    if opened(params.request_state) == "1":
        question = ask_person("Step 2: What is your favorite color?", color={"type": "string"})
        return wanted(signed("2"), step2=question)
    return text("Both steps are done.")


async def input_tampered(context, arguments, params):
    if params.request_state is None:
        return wanted(signed("intact"), confirm=ask_person("Sure?", ok={"type": "boolean"}))
    opened(params.request_state)
    return text("intact")


async def input_capabilities(context, arguments, params):
    if params.input_responses:
        return text("answered")
    can = context.session.client_capabilities
    questions = {}
    if can is not None and can.sampling is not None:
        questions["greeting"] = ask_model("Generate a greeting")
    if can is not None and can.elicitation is not None:
        questions["user_name"] = ask_person("What is your name?", name={"type": "string"})
    return wanted(**questions) if questions else text("The client answers nothing.")


ONE_TEXT = {name: form(**{name: {"type": "string"}}) for name in ("prompt", "message")}
HEADERS = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
}
SCHEMA_2020 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
TOOLS = {
    "test_simple_text": (simple_text, {}),
    "test_image_content": (image_content, {}),
    "test_audio_content": (audio_content, {}),
    "test_embedded_resource": (embedded_resource, {}),
    "test_multiple_content_types": (multiple_content_types, {}),
    "test_tool_with_logging": (with_logging, {}),
    "test_logging_tool": (logging_tool, {}),
    "test_tool_with_progress": (with_progress, {}),
    "test_error_handling": (error_handling, {}),
    "test_sampling": (sampling, ONE_TEXT["prompt"]),
    "test_elicitation": (elicitation, ONE_TEXT["message"]),
    "test_elicitation_sep1034_defaults": (elicitation_defaults, {}),
    "test_elicitation_sep1330_enums": (elicitation_enums, {}),
    "test_missing_capability": (missing_capability, {}),
    "test_streaming_elicitation": (streaming_elicitation, {}),
    "test_trigger_tool_change": (trigger_tool_change, {}),
    "test_trigger_prompt_change": (trigger_prompt_change, {}),
    "test_input_required_result_elicitation": (input_elicitation, {}),
    "test_input_required_result_sampling": (input_sampling, {}),
    "test_input_required_result_list_roots": (input_list_roots, {}),
    "test_input_required_result_request_state": (input_request_state, {}),
    "test_input_required_result_multiple_inputs": (input_multiple, {}),
    "test_input_required_result_multi_round": (input_multi_round, {}),
    "test_input_required_result_tampered_state": (input_tampered, {}),
    "test_input_required_result_capabilities": (input_capabilities, {}),
    "test_x_mcp_header": (simple_text, HEADERS),
    "json_schema_2020_12_tool": (simple_text, SCHEMA_2020),
}
RESOURCES = {
    "test://static-text": ("text/plain", "This is the content of the static text resource."),
    "test://static-binary": ("image/png", None),
    "test://watched-resource": ("text/plain", "It is watched."),
}
TEMPLATE = re.compile(r"test://template/([^/]+)/data")
CACHED = {"ttl_ms": 0, "cache_scope": "private"}


async def list_tools(context, params):
    tools = [
        types.Tool(name=name, description=name, input_schema=schema or {"type": "object"})
        for name, (_, schema) in TOOLS.items()
    ]
    tools += [
        types.Tool(name=f"test_added_{number}", description="new", input_schema={"type": "object"})
        for number in range(extra["tools"])
    ]
    return types.ListToolsResult(tools=tools, **CACHED)


async def call_tool(context, params):
    run, _ = TOOLS.get(params.name, (simple_text, None))
    if params.name not in TOOLS and not params.name.startswith("test_added_"):
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
    try:
        return await run(context, params.arguments or {}, params)
    except MCPError as error:
        if error.code == types.INVALID_REQUEST:  # the client does not answer this
            return text(str(error), is_error=True)
        raise


async def list_resources(context, params):
    resources = [
        types.Resource(uri=uri, name=uri.rpartition("/")[2], description=uri, mime_type=kind)
        for uri, (kind, _) in RESOURCES.items()
    ]
    return types.ListResourcesResult(resources=resources, **CACHED)


async def list_templates(context, params):
    template = types.ResourceTemplate(
        uri_template="test://template/{id}/data",
        name="template",
        description="Data for an id",
        mime_type="application/json",
    )
    return types.ListResourceTemplatesResult(resource_templates=[template], **CACHED)


async def read_resource(context, params):
    uri = str(params.uri)
    found = TEMPLATE.fullmatch(uri)
    if uri in RESOURCES:
        kind, value = RESOURCES[uri]
    elif found:
        kind, number = "application/json", found[1]
        data = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
        value = json.dumps(data)
    else:
        raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": uri})
    if value is None:
        contents = types.BlobResourceContents(uri=uri, mime_type=kind, blob=PNG)
    else:
        contents = types.TextResourceContents(uri=uri, mime_type=kind, text=value)
    return types.ReadResourceResult(contents=[contents], **CACHED)


async def nothing(context, params):
    return types.EmptyResult()


async def list_prompts(context, params):
    def one(name, *arguments):
        listed = [
            types.PromptArgument(name=argument, description=argument, required=True)
            for argument in arguments
        ]
        return types.Prompt(name=name, description=name, arguments=listed)

    prompts = [
        one("test_simple_prompt"),
        one("test_prompt_with_arguments", "arg1", "arg2"),
        one("test_prompt_with_embedded_resource", "resourceUri"),
        one("test_prompt_with_image"),
        one("test_input_required_result_prompt"),
        *(one(f"test_added_{number}") for number in range(extra["prompts"])),
    ]
    return types.ListPromptsResult(prompts=prompts, **CACHED)


async def get_prompt(context, params):
    arguments = params.arguments or {}
    if params.name == "test_simple_prompt":
        said = ["This is a simple prompt for testing."]
    elif params.name == "test_prompt_with_arguments":
        one, two = arguments.get("arg1", ""), arguments.get("arg2", "")
        said = [f"Prompt with arguments: arg1='{one}', arg2='{two}'"]
    elif params.name == "test_prompt_with_embedded_resource":
        resource = embedded(
            arguments.get("resourceUri", ""), "text/plain", "Embedded resource content for testing."
        )
        said = [resource, "Please process the embedded resource above."]
    elif params.name == "test_prompt_with_image":
        said = [image(), "Please analyze the image above."]
    elif params.name == "test_input_required_result_prompt":
        given = answer(params, "user_context", types.ElicitResult)
        if given is None:
            question = "What context should the prompt use?"
            return wanted(user_context=ask_person(question, context={"type": "string"}))
        said = [f"Use this context: {(given.content or {}).get('context')}"]
    else:
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
    messages = [
        types.PromptMessage(
            role="user",
            content=types.TextContent(type="text", text=each_question)
            if isinstance(each_question, str)
            else each_question,
        )
        for each_question in said
    ]
    return types.GetPromptResult(messages=messages)


async def complete(context, params):
    values = [word for word in ("paris", "park", "party") if word.startswith(params.argument.value)]
    return types.CompleteResult(
        completion=types.Completion(values=values, total=len(values), has_more=False)
    )


server = Server(
    "everything",
    version="0",
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_subscribe_resource=nothing,
    on_unsubscribe_resource=nothing,
    on_subscriptions_listen=ListenHandler(bus),
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_completion=complete,
    on_set_logging_level=nothing,
)


async def over_stdio():
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def over_http():
    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Mount

    inner = server.streamable_http_app()

    @contextlib.asynccontextmanager
    async def lifespan(app):
        async with server.session_manager.run():
            yield

    app = Starlette(routes=[Mount("/", inner)], lifespan=lifespan)
    listener = socket.socket()
    listener.bind(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    listener.listen(128)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    if "--stdio" in sys.argv:
        asyncio.run(over_stdio())
    else:
        over_http()

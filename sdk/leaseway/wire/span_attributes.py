"""Names of the attributes that Leaseway sets on spans, metrics and log records."""

from __future__ import annotations

from typing import Final

from leaseway.wire.messages import states


class Attr:
    """Names of attributes: from the MCP and GenAI conventions, and Leaseway's own."""

    MCP_METHOD_NAME: Final = "mcp.method.name"
    MCP_PROTOCOL_VERSION: Final = "mcp.protocol.version"
    MCP_SESSION_ID: Final = "mcp.session.id"
    MCP_RESOURCE_URI: Final = "mcp.resource.uri"
    GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
    GEN_AI_PROMPT_NAME: Final = "gen_ai.prompt.name"
    GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
    JSONRPC_REQUEST_ID: Final = "jsonrpc.request.id"
    RPC_RESPONSE_STATUS_CODE: Final = "rpc.response.status_code"
    NETWORK_TRANSPORT: Final = "network.transport"
    ERROR_TYPE: Final = "error.type"

    TENANT: Final = "leaseway.tenant"
    AGENT: Final = "leaseway.agent"
    SESSION: Final = "leaseway.session"
    LEASE: Final = "leaseway.lease"
    SERVER: Final = "leaseway.server"
    WORKER: Final = "leaseway.worker"
    GENERATION: Final = "leaseway.generation"
    INSTANCE: Final = "leaseway.instance"
    REGISTRY_VERSION: Final = "leaseway.registry_version"
    LAUNCH_HASH: Final = "leaseway.launch_hash"
    CONFIG_PATH: Final = "leaseway.config.path"
    STATE: Final = "leaseway.state"
    OUTCOME: Final = "leaseway.outcome"
    REASON: Final = "leaseway.reason"
    SCOPE: Final = "leaseway.scope"
    SEVERITY: Final = "leaseway.severity"
    FRAME: Final = "leaseway.frame"
    QUOTA: Final = "leaseway.quota"
    LEASE_START: Final = "leaseway.lease.start"
    LIMIT: Final = "leaseway.limit"

    EXECUTE_TOOL: Final = "execute_tool"
    """The value of `GEN_AI_OPERATION_NAME` for a tool call."""
    TOOL_ERROR: Final = states.TOOL_ERROR
    """The value of `ERROR_TYPE` if a tool's result has `isError`."""
    PIPE: Final = "pipe"
    """The value of `NETWORK_TRANSPORT` for stdio servers."""
    TCP: Final = "tcp"
    """The value of `NETWORK_TRANSPORT` for servers on a network."""

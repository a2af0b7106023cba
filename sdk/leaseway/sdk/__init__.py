"""Leaseway's SDK: list tools, call them, hold leases.

    async with AsyncClient("127.0.0.1:7600", agent="billing") as client:
        result = await client.call_tool("time_get_current_time", {"timezone": "UTC"})
        print(result.text)

`Client` is the same without `await`. All failures are `LeasewayError`s; see
`leaseway.sdk.errors` for the whole tree.
"""

import leaseway.wire.forking  # noqa: F401 - has to come before gRPC is loaded

# isort: split
from leaseway.sdk.artifacts import Artifact, AsyncArtifact
from leaseway.sdk.client import AsyncClient
from leaseway.sdk.errors import (
    ArtifactLost,
    Cancelled,
    Capacity,
    ConfirmationRequired,
    ControlPlaneUnavailable,
    DeadlineExceeded,
    Draining,
    FateUnknown,
    IncompatibleVersion,
    InputRequired,
    InternalError,
    InvalidArguments,
    InvalidRequest,
    LeaseError,
    LeaseExpired,
    LeaseLost,
    LeaseReleased,
    LeaseRevoked,
    LeasewayError,
    NotApplied,
    NotLeader,
    NotLeasable,
    Overloaded,
    PermissionDenied,
    RateLimited,
    ResultTooLarge,
    ServerError,
    ServerLost,
    ServerNotReady,
    SessionRequired,
    Syncing,
    ToolDiffers,
    ToolNotFound,
    Unauthenticated,
    Violation,
    WorkerLost,
)
from leaseway.sdk.events import LogMessage, Progress
from leaseway.sdk.lease import Lease
from leaseway.sdk.media import Media, ModelContent
from leaseway.sdk.offer_results import Completion, PromptResult, ResourceResult
from leaseway.sdk.options import CallOptions, StreamOptions
from leaseway.sdk.projection import ProjectionProblem, project_tools
from leaseway.sdk.prompts import Prompt, PromptArgument, PromptList
from leaseway.sdk.resources import (
    Resource,
    ResourceList,
    ResourceTemplate,
    ResourceTemplateList,
)
from leaseway.sdk.result_errors import ResultTypeError, ToolError
from leaseway.sdk.results import ToolResult
from leaseway.sdk.session import AsyncSession
from leaseway.sdk.streams import AsyncToolStream, ToolStream
from leaseway.sdk.subscriptions import AsyncResourceUpdates, ResourceUpdates
from leaseway.sdk.sync import Client, Session
from leaseway.sdk.tools import Tool, ToolList
from leaseway.sdk.views import (
    InstanceInfo,
    InstanceLog,
    LeaseInfo,
    ProblemInfo,
    ServerInfo,
    Status,
    WorkerInfo,
)
from leaseway.sdk.watching import AsyncToolWatch, ToolWatch

__all__ = [
    "Artifact",
    "ArtifactLost",
    "AsyncArtifact",
    "AsyncClient",
    "AsyncResourceUpdates",
    "AsyncSession",
    "AsyncToolStream",
    "AsyncToolWatch",
    "CallOptions",
    "Cancelled",
    "Capacity",
    "Client",
    "Completion",
    "ConfirmationRequired",
    "ControlPlaneUnavailable",
    "DeadlineExceeded",
    "Draining",
    "FateUnknown",
    "IncompatibleVersion",
    "InputRequired",
    "InstanceInfo",
    "InstanceLog",
    "InternalError",
    "InvalidArguments",
    "InvalidRequest",
    "Lease",
    "LeaseError",
    "LeaseExpired",
    "LeaseInfo",
    "LeaseLost",
    "LeaseReleased",
    "LeaseRevoked",
    "LeasewayError",
    "LogMessage",
    "Media",
    "ModelContent",
    "NotApplied",
    "NotLeader",
    "NotLeasable",
    "Overloaded",
    "PermissionDenied",
    "ProblemInfo",
    "Progress",
    "ProjectionProblem",
    "Prompt",
    "PromptArgument",
    "PromptList",
    "PromptResult",
    "RateLimited",
    "Resource",
    "ResourceList",
    "ResourceResult",
    "ResourceTemplate",
    "ResourceTemplateList",
    "ResourceUpdates",
    "ResultTooLarge",
    "ResultTypeError",
    "ServerError",
    "ServerInfo",
    "ServerLost",
    "ServerNotReady",
    "Session",
    "SessionRequired",
    "Status",
    "StreamOptions",
    "Syncing",
    "Tool",
    "ToolDiffers",
    "ToolError",
    "ToolList",
    "ToolNotFound",
    "ToolResult",
    "ToolStream",
    "ToolWatch",
    "Unauthenticated",
    "Violation",
    "WorkerInfo",
    "WorkerLost",
    "project_tools",
]

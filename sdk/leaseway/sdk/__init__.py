"""Leaseway's SDK: list and call tools, and hold leases.

    async with AsyncClient("127.0.0.1:7600", agent="billing") as client:
        result = await client.call_tool("time_get_current_time", {"timezone": "UTC"})
        print(result.text)

`Client` is the same without `await`. A failed request raises a `LeasewayError`; see
`leaseway.sdk.errors` for all of them.
"""

import leaseway.wire.grpc_environment  # noqa: F401 - must be imported before gRPC

# isort: split
from leaseway.sdk.blocking.client import Client, Session
from leaseway.sdk.blocking.streams import (
    Artifact,
    ListWatch,
    ResourceUpdates,
    ToolStream,
    ToolWatch,
)
from leaseway.sdk.calls.media import Media, ModelContent
from leaseway.sdk.calls.prompt_results import Completion, PromptResult, ResourceResult
from leaseway.sdk.calls.results import ToolResult
from leaseway.sdk.calls.typed_results import ResultTypeError, ToolError
from leaseway.sdk.catalog.prompts_resources import (
    Prompt,
    PromptArgument,
    PromptList,
    Resource,
    ResourceList,
    ResourceTemplate,
    ResourceTemplateList,
)
from leaseway.sdk.catalog.providers import ProjectionProblem, project_tools
from leaseway.sdk.catalog.tools import Tool, ToolList
from leaseway.sdk.client.artifacts import AsyncArtifact
from leaseway.sdk.client.client import AsyncClient
from leaseway.sdk.client.options import CallOptions, StreamOptions
from leaseway.sdk.client.session import AsyncSession
from leaseway.sdk.client.streams import AsyncToolStream
from leaseway.sdk.client.subscriptions import AsyncResourceUpdates
from leaseway.sdk.client.watches import AsyncListWatch, AsyncToolWatch
from leaseway.sdk.errors import (
    ArtifactLost,
    AuthorizationFailed,
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
    LoginRequired,
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
    StoreUnavailable,
    Syncing,
    ToolDiffers,
    ToolNotFound,
    Unauthenticated,
    UserRequired,
    Violation,
    WorkerLost,
)
from leaseway.sdk.leases.lease import Lease
from leaseway.sdk.operators.views import (
    Approval,
    InstanceInfo,
    InstanceLog,
    LeaseInfo,
    LimitInfo,
    ProblemInfo,
    ServerInfo,
    Status,
    WorkerInfo,
)
from leaseway.sdk.transport.events import LogMessage, Progress
from leaseway.wire.messages.states import ServerState

__all__ = [
    "Approval",
    "Artifact",
    "ArtifactLost",
    "AsyncArtifact",
    "AsyncClient",
    "AsyncListWatch",
    "AsyncResourceUpdates",
    "AsyncSession",
    "AsyncToolStream",
    "AsyncToolWatch",
    "AuthorizationFailed",
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
    "LimitInfo",
    "ListWatch",
    "LogMessage",
    "LoginRequired",
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
    "ServerState",
    "Session",
    "SessionRequired",
    "Status",
    "StoreUnavailable",
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
    "UserRequired",
    "Violation",
    "WorkerInfo",
    "WorkerLost",
    "project_tools",
]

"""The models of `mcp` 1.x read lists; run in its own environment. Like `lists.mjs`."""

import json
import sys

from mcp import types

MODELS = {
    "tools/list": types.ListToolsResult,
    "prompts/list": types.ListPromptsResult,
    "resources/list": types.ListResourcesResult,
    "resources/templates/list": types.ListResourceTemplatesResult,
}

for index, case in enumerate(json.load(sys.stdin)):
    for method, model in MODELS.items():
        try:
            model.model_validate(case["results"][method])
        except ValueError as error:
            print(json.dumps({"index": index, "list": method, "why": str(error)[:2000]}))

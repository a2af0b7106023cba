"""The worker: it holds MCP servers and runs calls on them."""

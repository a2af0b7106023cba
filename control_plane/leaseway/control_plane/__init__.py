"""The control plane: reads the configuration, decides what workers serve (design.md).

Imports the shared packages (`identity`, `spec`, `telemetry`, `vault`, `templates`, `runbook`,
`wire`); never the data plane or the command line, and of the SDK only what the console tries tools
with.
"""

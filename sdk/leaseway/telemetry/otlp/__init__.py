"""OTLP: the standard variables, how often failures are logged, and exporters over HTTP.

`variables` reads the environment for each way; `http_sender` posts bytes and imports nothing of
OpenTelemetry's.
"""

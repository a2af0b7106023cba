"""OTLP over HTTP: the standard variables, a sender of encoded requests, the exporters over it.

`settings` reads the variables; `sender` posts bytes and imports nothing of OpenTelemetry's.
"""

"""Logs, metrics and traces of the planes and the command, and their export.

The SDK does not import it: a service brings its own OpenTelemetry SDK.
"""

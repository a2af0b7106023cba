"""Logs, metrics and traces of the planes and the command, and their export.

The SDK never imports it: a service brings its own OpenTelemetry SDK.
"""

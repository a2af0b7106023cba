"""Spans at a fraction of the standard cost: pairs of a call's spans, lean spans, their encoding.

Nothing is imported here: pairs do not need OpenTelemetry's sdk, and the others do.
"""

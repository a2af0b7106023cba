"""Desired servers and the probes that try them.

Pure. Takes events and the time, returns actions.
"""

"""Desired servers and the probes that test them.

Pure. Handles events and the time, returns actions.
"""

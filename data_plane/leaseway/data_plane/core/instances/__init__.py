"""Decisions about instances: restart backoff, circuit breaker, age, idleness, spares.

Pure. Imports nothing of the worker outside `core`.
"""

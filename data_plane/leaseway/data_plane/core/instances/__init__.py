"""Decisions about instances: restart backoff, circuit breaker, age, idleness, spares. Pure."""

"""Commands that show operators what goes on: status, listings, traces, events, audit.

They read what control planes and workers tell operators; they import no plane.
"""

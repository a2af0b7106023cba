"""Commands for operators: status, listings, traces, events, audit.

They use the SDK's operator requests.
"""

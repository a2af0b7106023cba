"""The asynchronous client and its sessions, the API that services use.

Each method builds one request and passes it to `calls`, `leases`, `catalog` or `operators`.
"""

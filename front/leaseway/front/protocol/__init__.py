"""What MCP messages are to the front, in each version: read, checked, written and converted. Pure.

`envelope` reads messages, `messages` and `clients` what they contain; `handshake` has the versions,
`results` what clients get, and `eras` a module for each step back to an older version.

Imports only the SDK's errors and `wire`.
"""

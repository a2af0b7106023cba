"""Kinds of servers, as a worker runs them: `values` and `openers` over a folder for each.

`values` says what a server of each kind gets of its entry, resolved; `openers` open an instance of
it, behind `core.ports`. A kind imports what speaks MCP, and of other kinds only `process`, which
runs commands for several. Only `app` and test doubles import `openers`.
"""

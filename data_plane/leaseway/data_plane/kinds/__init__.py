"""Kinds of servers, as a worker runs them: one folder each, with `values` and `opener`.

`values.values_of` says what a server of the kind gets of its entry, resolved;
`opener.open_instance` opens an instance of it, behind `core.ports`. A kind imports what speaks MCP,
and of other kinds only `process` and `pod`, which run commands for several. Only `app` and test
doubles import `openers`.
"""

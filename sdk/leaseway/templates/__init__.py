"""Response templates in Go's syntax, compiled once and rendered within limits.

Pure, and shared by both planes: the control plane compiles a template to check it, a worker renders
it. Imports only jinja2 and `leaseway.wire.bounds`; the SDK never imports it.
"""

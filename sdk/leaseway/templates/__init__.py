"""Response templates: Go's template syntax and Jinja2's own, compiled once and rendered bounded.

Pure, and shared by both planes: the control plane compiles a template to refuse a bad one, a worker
renders with it. Imports jinja2, `leaseway.wire.bounds` and nothing else; the SDK never imports it.
"""

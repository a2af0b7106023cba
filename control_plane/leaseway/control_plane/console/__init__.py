"""The web console: a page, its JSON API and a live stream, served by the control plane process.

Imports the plane, the core and the services; only `app` imports it.
"""

"""The console: one page, its JSON and its live stream, served in the control plane's process.

It reads the plane's state on the plane's loop and steers it as the admin service does. It may
import the plane, the core and the services; nothing but the app imports it.
"""

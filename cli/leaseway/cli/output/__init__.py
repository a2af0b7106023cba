"""The output of commands: tables, content of results, files.

Only this package prints text that servers wrote; it escapes control characters.
"""

"""The output of commands: tables, content of results, files.

Only this package prints text from servers, so that it can escape control characters.
"""

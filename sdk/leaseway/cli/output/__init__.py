"""What commands print: tables, content of results, files.

The one place where text that servers wrote reaches the terminal.
"""

"""What must not be shown: names and shapes of secrets, and their removal from texts.

Pure; it imports nothing but the standard library.
"""

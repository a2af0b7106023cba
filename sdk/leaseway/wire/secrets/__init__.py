"""Secrets: names and shapes that reveal them, and their removal from texts.

Pure; imports only the standard library.
"""

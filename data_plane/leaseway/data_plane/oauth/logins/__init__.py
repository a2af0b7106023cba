"""Logins of people: in a browser, by a code on another device, at a link of the console.

Imports the rest of `oauth`; only `tokens` there, which renews logins, imports it.
"""

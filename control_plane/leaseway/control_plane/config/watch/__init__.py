"""Following files: events, polling behind them, and one quiet period before a reload.

Imports `loading`; decides nothing about content.
"""

"""Questions of callers: resolve a name, find a lease, place a session, suggest a near name.

Pure readers over the coordinator's state; they change nothing but reservations.
"""

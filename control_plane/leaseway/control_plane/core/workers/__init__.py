"""Workers as the control plane knows them: roster, records, what each was sent and acknowledged.

Pure. Takes events and the time, returns actions.
"""

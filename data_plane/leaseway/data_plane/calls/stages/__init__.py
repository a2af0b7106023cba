"""The stages of a call between its admission and its server (design.md#calls), one file each.

A call passes those that its server needs, in this order: rules, approval, instance, turn, record,
approval (spent), send. A stage that makes a call wait owns it until it resumes or ends. Stages know
calls, and no stage knows another one or the executor.
"""

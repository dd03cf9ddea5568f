"""Compute parts from linear maps: the maps, the program they form, rewrite passes, the planner and the executors.

Independent of operation names and rules. May import errors, native, progress, regions, `trace.devices` and
`trace.linear_operators`.
"""

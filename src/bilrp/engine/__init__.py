"""Maps → parts: frozen linear maps, the program they make, the plan that costs least, and the ways of running it.

Sees maps only, never what a step was called. May import errors, native, regions and `trace.linear_operators`.
"""

"""How the links of a program are executed: on whole values, on windows, on tiles, and on sparse rows.

Each executor knows the kinds of maps it is made for, by functions registered for their classes, and hands every other map
to its `push` and `pull` on whole values. May import maps and program of the engine, native, errors, regions and `trace`.
"""

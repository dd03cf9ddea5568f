"""Record and verify one run of an encoder; the table of operations; rewrites of the tape.

Knows torch but not LRP. May import only `bilrp.errors` and `bilrp.native`.
"""

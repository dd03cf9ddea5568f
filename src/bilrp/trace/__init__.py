"""What ran: the tape of one run, the table of operations, rewrites of the tape and its listing.

Knows torch, nothing of LRP. May import errors and native.
"""

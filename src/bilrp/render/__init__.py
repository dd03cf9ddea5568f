"""What people see: the account of a score, links, pictures, pages, and the table of formats they are written in.

May import what a user holds, and disk.
"""

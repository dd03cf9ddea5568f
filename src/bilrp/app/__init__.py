"""The app: a collection, or one pair, served to a browser on this machine; and the notebook's widgets.

Words, ids and region numbers come in, never a path; what is long waits in a bounded queue. May import what a user holds,
collection, encoders, progress, io, findings and render. Needs `bilrp[app]`, the widgets `bilrp[notebook]`.
"""

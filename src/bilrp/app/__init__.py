"""HTTP server and browser app for a collection or one pair, and the notebook widgets.

Requests contain texts, item ids and region numbers, never paths; slow work waits in a bounded job queue. May import the
user-level modules (encoder, decomposition, explanation), collection, encoders, progress, io, findings and render. Needs
the extra `bilrp[app]`, the widgets `bilrp[notebook]`.
"""

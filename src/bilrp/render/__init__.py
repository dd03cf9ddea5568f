"""Draw explanations: matplotlib figures, self-contained HTML pages, reports, and the one-line score breakdown.

May import the data types that users call, findings and io.
"""

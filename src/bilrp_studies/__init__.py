"""The paper's experiments, one folder each, from data to table and figure; `table` lists them, `common` is what they share.

A study may import every room but cli, and no other study. The names here are what a study of your own needs.
"""

from bilrp.render.report import Picture, Report, Section, Table, Text
from bilrp_studies.common.study import Settings, Study, option, place

__all__ = ["Picture", "Report", "Section", "Settings", "Study", "Table", "Text", "option", "place"]

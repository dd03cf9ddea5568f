"""The paper's experiments, one folder each, from data to table and figure; `catalog` lists them, `common` is what
they share.

A study may import every package of bilrp but cli, and no other study. The names here are what a study of your own needs.
"""

from bilrp.render.report import Paragraph, Picture, Report, Section, Table
from bilrp_studies.common.study import Settings, Study, option, path_option

__all__ = ["Paragraph", "Picture", "Report", "Section", "Settings", "Study", "Table", "option", "path_option"]

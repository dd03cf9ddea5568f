"""The paper's experiments, one package each, from data to table and figure.

`catalog` lists the studies, `common` holds shared code. A study may import every package of bilrp except cli, and no
other study. The names exported here are those needed to write a study of your own.
"""

from bilrp.render.report import Paragraph, Picture, Report, Section, Table
from bilrp_studies.common.study import Settings, Study, option, path_option

__all__ = ["Paragraph", "Picture", "Report", "Section", "Settings", "Study", "Table", "option", "path_option"]

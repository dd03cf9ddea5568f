"""Step → map: rules freeze one step each into a linear map at this input; rule books say which rule for which step.

May import errors, trace and the engine's maps and program.
"""

from bilrp.rules.attnlrp import halves as halves
from bilrp.rules.attnlrp import shared_attention as shared_attention
from bilrp.rules.weighted import *  # noqa: F403

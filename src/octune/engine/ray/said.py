"""What Ray says of an error, in one line.

cause(error)        # "ModuleNotFoundError: No module named 'octune'"
"""

from __future__ import annotations

import re

from octune.errors import summary

__all__ = ["cause"]

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*: .+$", re.MULTILINE)  # how a traceback ends


def cause(error: BaseException) -> str:
    """Where Ray quotes a traceback, that is its last line: what was raised. Else Ray's own words."""
    said = COLOURS.sub("", str(error))
    if "\n  File " in said and (raised := RAISED.findall(said)):
        return str(raised[-1])
    return summary(error)

"""What ends a job of several ranks."""

from __future__ import annotations

from stemdl.errors import UserError

EXIT_COMM = 76
"""Exit code of every rank where one was lost, late or disagreed (EX_PROTOCOL of sysexits.h)."""


class CommError(UserError):
    """Ranks were lost, late, or do not agree: names them, and the group they were at."""

    exit_code = EXIT_COMM

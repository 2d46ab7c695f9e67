"""The base of every error that is the user's to mend."""

from __future__ import annotations


class UserError(Exception):
    """Something the user gave is wrong: the message says what was found, what is allowed, which key or file.

    The command line prints the message alone, without a traceback, and ends with `exit_code`.
    """

    exit_code = 2

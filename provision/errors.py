"""The exception family and the exit codes.

GpuprovError                 stopped by a named error                     exit 1
├── UsageError               the command line is wrong                    exit 2
├── InventoryError           the inventory cannot be read or used         exit 1
├── StackError               unknown stack or variable, bad stack file    exit 1
├── CompatibilityError       versions that cannot live together           exit 1
├── RunFolderError           a run folder is unreadable or too new        exit 1
├── IncompleteError          no node could be reached, or none be measured exit 5
├── OutputError              standard output cannot be written to         exit 1, 141 when its reader has gone
├── BugError                 a mistake of ours; the traceback is kept     exit 70
├── ParseError               tool output that was not understood (checks turn it into the verdict `error`)
└── LabError                 the lab cannot be built on this machine      exit 1
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What the shell sees. `up`, `validate` and `drift` report the worst that happened."""

    OK = 0
    ERROR = 1  # stopped by a named error
    USAGE = 2  # wrong command line
    UNHEALTHY = 3  # a node is unhealthy, or a role failed on it
    DRIFT = 4  # the fleet differs from what was declared
    INCOMPLETE = 5  # something was unreachable or could not be measured, and nothing worse
    BUG = 70  # our mistake; the traceback is kept
    INTERRUPTED = 130
    CLOSED_PIPE = 141  # the reader of the output has gone; 128 + SIGPIPE, as the shell has it for other tools


class GpuprovError(Exception):
    """A problem a user can act on: `what` went wrong (with where), and what to do about it (`fix`)."""

    exit_code = ExitCode.ERROR

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


class UsageError(GpuprovError):
    exit_code = ExitCode.USAGE


class InventoryError(GpuprovError):
    pass


class StackError(GpuprovError):
    pass


class CompatibilityError(GpuprovError):
    pass


class RunFolderError(GpuprovError):
    pass


class BugError(GpuprovError):
    exit_code = ExitCode.BUG


class ParseError(GpuprovError):
    pass


class IncompleteError(GpuprovError):
    exit_code = ExitCode.INCOMPLETE


class OutputError(GpuprovError):
    """`cause`: what the system said."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"standard output cannot be written to: {cause.strerror}")
        if isinstance(cause, BrokenPipeError):
            self.exit_code = ExitCode.CLOSED_PIPE


class LabError(GpuprovError):
    pass

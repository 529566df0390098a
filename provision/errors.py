"""The exception hierarchy and the exit codes.

GpuprovError                 stopped by a named error                     exit 1
├── UsageError               the command line is wrong                    exit 2
├── InventoryError           the inventory cannot be read or used         exit 1
├── StackError               unknown stack or variable, bad stack file    exit 1
├── CompatibilityError       incompatible versions                        exit 1
├── RunFolderError           a run folder is unreadable or too new        exit 1
├── IncompleteError          no node could be reached or measured         exit 5
├── OutputError              standard output cannot be written to         exit 1, 141 if its reader is gone
├── BugError                 our mistake; the traceback is stored         exit 70
├── ParseError               unparseable output of a tool (checks turn it into the verdict `error`)
└── LabError                 the lab cannot be built on this machine      exit 1
"""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """Exit status of a command; `up`, `validate` and `drift` report the worst outcome."""

    OK = 0
    ERROR = 1  # stopped by a named error
    USAGE = 2  # wrong command line
    UNHEALTHY = 3  # a node is unhealthy, or a role failed on it
    DRIFT = 4  # the fleet differs from its declared state
    INCOMPLETE = 5  # something was unreachable or unmeasured, and nothing worse happened
    BUG = 70  # our mistake; the traceback is stored
    INTERRUPTED = 130
    CLOSED_PIPE = 141  # the reader of the output is gone; 128 + SIGPIPE, as shells report it


class GpuprovError(Exception):
    """A problem that a user can solve: `what` went wrong (and where), and how to `fix` it."""

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
    """Standard output cannot be written to; `cause` is the system's error."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(f"standard output cannot be written to: {cause.strerror}")
        if isinstance(cause, BrokenPipeError):
            self.exit_code = ExitCode.CLOSED_PIPE


class LabError(GpuprovError):
    pass

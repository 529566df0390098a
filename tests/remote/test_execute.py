"""Remote execution when its connection is cut."""

from __future__ import annotations

import threading
import time

import pytest

from provision.remote.protocol import ANSWER_LIMIT, Clock, NodeError
from provision.remote.ssh.connection import Hop, Route
from provision.remote.ssh.execute import RemoteExecution

SECONDS = 0.3


class Cut:
    """A silent channel, closed when its time is up (as Ssh.expire does)."""

    def __init__(self, after: float) -> None:
        self.status_event = threading.Event()
        self.status_event.set()
        self.exit_status = -1
        self._after = after

    def settimeout(self, timeout: float) -> None: ...

    def set_combine_stderr(self, combine: bool) -> bool:
        return combine

    def exec_command(self, command: str) -> None: ...

    def send(self, s: bytes) -> int:
        return len(s)

    def shutdown_write(self) -> None: ...

    def recv(self, nbytes: int) -> bytes:  # noqa: ARG002
        time.sleep(self._after)
        return b""

    def recv_stderr(self, nbytes: int) -> bytes:  # noqa: ARG002
        return b""

    def recv_stderr_ready(self) -> bool:
        return False


@pytest.mark.parametrize(("after", "kind"), [(SECONDS + 0.1, "hung"), (0.0, "garbage")])
def test_a_node_cut_off_because_its_time_was_up_did_not_answer_badly(after: float, kind: str) -> None:
    question = RemoteExecution(Cut(after), Route(Hop("192.0.2.1", 22, "ops")), b"print()", Clock(SECONDS))
    with pytest.raises(NodeError) as error:
        question.answer()
    assert error.value.kind == kind


class Complaining(Cut):
    """A channel with endless standard error; `most`: bytes after which the test fails."""

    most = 64 << 20

    def __init__(self) -> None:
        super().__init__(0.0)
        self.read = 0

    def recv(self, nbytes: int) -> bytes:  # noqa: ARG002
        return b"x"

    def recv_stderr(self, nbytes: int) -> bytes:
        self.read += nbytes
        return b"x" * nbytes

    def recv_stderr_ready(self) -> bool:
        return self.read < self.most


def test_errors_without_end_are_bounded_in_one_read() -> None:
    channel = Complaining()
    question = RemoteExecution(channel, Route(Hop("192.0.2.1", 22, "ops")), b"print()", Clock(60))
    with pytest.raises(NodeError) as error:
        question.answer()
    assert error.value.kind == "too large"
    assert channel.read < 2 * ANSWER_LIMIT

"""A real sshd on a loopback address, run as whoever runs the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.support.sshd import Sshd


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    program = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ.get("PATH", ""))
    if program is None:
        pytest.fail("sshd is not installed: apt install openssh-server")
    server = Sshd(tmp_path_factory.mktemp("sshd"), program)
    yield server
    server.stop()

"""Server that runs simulated tools for tests, each in its own process, without starting Python again.

`tool_server.py RUN SOCKET`: a request is JSON (words, environment, cwd) with three open files: stdout, stderr
and one that receives the tool's process id and then its exit status.
"""

import gc
import json
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any


def serve(run: str, requests: socket.socket) -> None:
    sys.path.insert(0, str(Path(run).parent))
    for path in sorted(Path(run).parent.glob("*.py")):
        if path.name != "run.py":
            __import__(path.stem)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # auto-reaps the processes that wait for tools
    while True:
        text, handles, _, _ = socket.recv_fds(requests, 1 << 16, 3)
        if not text:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            become(run, json.loads(text), *handles)
        for handle in handles:
            os.close(handle)


def become(run: str, request: dict[str, Any], stdout: int, stderr: int, told: int) -> None:
    """Start the tool and wait for it, in a separate process that ends with it."""
    pid = os.fork()
    if pid:
        os.write(told, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(told, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for handle in (stdout, stderr, told):
        os.close(handle)
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.argv = [run, *request["words"]]
    try:
        runpy.run_path(run, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, int):
            sys.stdout.flush()
            os._exit(end.code)
        raise


if __name__ == "__main__":
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))

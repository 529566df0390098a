"""Connections to a real sshd on a loopback address, and to misbehaving servers created here."""

from __future__ import annotations

import base64
import concurrent.futures
import os
import re
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import paramiko.common
import pytest

from provision.remote.protocol import NodeError
from provision.remote.ssh import client
from provision.remote.ssh.client import Ssh
from provision.remote.ssh.config import ConfigFiles
from provision.remote.ssh.connection import Route, route_of

ANSWER = "@gpuprov-facts 1 2\n{}\n@gpuprov-end\n"
PROGRAM = f"import sys\nsys.stdout.write({ANSWER!r})\n".encode()


@pytest.fixture
def ssh() -> Iterator[Ssh]:
    opened = Ssh()
    yield opened
    opened.close()


def route(node: Any, **changes: Any) -> Route:
    return replace(route_of(node, ConfigFiles()), **changes)


def trouble(ssh: Ssh, way: Route, program: bytes = PROGRAM, seconds: float = 20) -> NodeError:
    with pytest.raises(NodeError) as caught:
        ssh.ask(way, program, seconds)
    assert caught.value.what
    assert caught.value.fix
    assert "\n" not in caught.value.what + caught.value.fix
    return caught.value


def test_a_program_is_run_and_its_answer_comes_back(ssh: Ssh, sshd: Any) -> None:
    assert ANSWER.encode() in ssh.ask(route(sshd.node()), PROGRAM, 20)


def test_words_around_the_answer_do_no_harm(ssh: Ssh, sshd: Any) -> None:
    noise = b"import sys\nprint('Welcome! ' * 50)\n" + PROGRAM + b"print('bye')\n"
    assert ANSWER.encode() in ssh.ask(route(sshd.node()), noise, 20)


def test_many_at_once(ssh: Ssh, sshd: Any) -> None:
    way = route(sshd.node())
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(ssh.ask(way, PROGRAM, 60))) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [ANSWER.encode() in answer for answer in answers] == [True] * 12


# The client's identity


def test_a_wrong_key_is_named(ssh: Ssh, sshd: Any) -> None:
    stranger = sshd.keygen("nobody")
    error = trouble(ssh, route(sshd.node(key=stranger)))
    assert error.kind == "auth"
    assert error.unreachable
    assert f"refused user {sshd.user}" in error.what
    assert f"{stranger} (SHA256:" in error.what


def test_a_key_file_that_is_not_there_is_named(ssh: Ssh, sshd: Any, tmp_path: Path) -> None:
    error = trouble(ssh, route(sshd.node(key=tmp_path / "none")))
    assert error.kind == "auth"
    assert f"{tmp_path / 'none'} (does not exist)" in error.what


def test_a_locked_key_wants_its_passphrase_or_the_agent(ssh: Ssh, sshd: Any) -> None:
    key = sshd.key("locked", passphrase="open sesame")
    error = trouble(ssh, route(sshd.node(key=key)))
    assert "needs its passphrase: ssh-add it" in error.what
    assert ssh.ask(route(sshd.node(key=key, ansible_private_key_passphrase="open sesame")), PROGRAM, 20)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    path = str(tmp_path / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    monkeypatch.setenv("SSH_AUTH_SOCK", path)
    while not os.path.exists(path):  # noqa: PTH110
        assert process.poll() is None
    yield path
    process.terminate()
    process.wait(timeout=60)


@pytest.mark.parametrize("options", ["-o IdentitiesOnly=yes", "-o IdentitiesOnly=no"])
def test_the_agent_holds_the_locked_key(
    ssh: Ssh, sshd: Any, agent: str, tmp_path: Path, options: str
) -> None:
    name = "by_agent_" + options[-2:].replace("=", "")
    key = sshd.key(name, passphrase="secret")
    ask = tmp_path / "ask"
    ask.write_text("#!/bin/sh\necho secret\n")
    ask.chmod(0o700)
    environment = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force", "DISPLAY": ":"}
    subprocess.run(
        ["ssh-add", str(key)],
        env=environment,
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
    )
    way = route(sshd.node(key=key))
    identities_only = options.endswith("yes")
    target = replace(way.target, agent=agent, identities_only=identities_only)
    assert ANSWER.encode() in ssh.ask(replace(way, target=target), PROGRAM, 20)


# The servers' identities


def test_an_unknown_host_key_is_refused_with_the_line_to_run(ssh: Ssh, sshd: Any, tmp_path: Path) -> None:
    empty = tmp_path / "known hosts"
    way = route(sshd.node())
    way = replace(way, target=replace(way.target, user_known_hosts=(str(empty),)))
    error = trouble(ssh, way)
    assert error.kind == "host key"
    assert f"the host key of 127.0.0.1:{sshd.port} is not in {empty}: ED25519 SHA256:" in error.what
    line = error.fix.partition("run: ")[2]
    assert line == f"ssh-keyscan -p {sshd.port} -t ed25519 127.0.0.1 >> {shlex.quote(str(empty))}"
    subprocess.run(["sh", "-c", line], check=True, capture_output=True, timeout=20)
    assert ANSWER.encode() in Ssh().ask(way, PROGRAM, 20)


def test_a_changed_host_key_is_refused_naming_line_and_both_keys(ssh: Ssh, sshd: Any, tmp_path: Path) -> None:
    other = sshd.keygen("other_host")
    file = sshd.know(tmp_path / "known_hosts", "other_host")
    file.write_text("# a comment\n" + file.read_text())
    error = trouble(ssh, route(sshd.node(known_hosts=file)))
    assert error.kind == "host key"
    assert "CHANGED" in error.what
    assert f"{file} line 2 says ED25519 {_fingerprint(other)}" in error.what
    assert f"it shows ED25519 {_fingerprint(sshd.folder / 'host_ed25519')}" in error.what
    assert f"ssh-keygen -f {file} -R '[127.0.0.1]:{sshd.port}'" in error.fix


def _fingerprint(key: Path) -> str:
    said = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, check=True, timeout=20)
    return said.stdout.decode().split()[1]


def test_a_host_known_by_another_of_its_keys_is_asked_for_that_one(
    ssh: Ssh, sshd: Any, tmp_path: Path
) -> None:
    file = sshd.know(tmp_path / "known_hosts", "host_ecdsa")
    assert ANSWER.encode() in ssh.ask(route(sshd.node(known_hosts=file)), PROGRAM, 20)


def test_a_hashed_name_is_found(ssh: Ssh, sshd: Any, tmp_path: Path) -> None:
    file = sshd.know(tmp_path / "known_hosts")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True, timeout=20)
    assert file.read_text().startswith("|1|")
    assert ANSWER.encode() in ssh.ask(route(sshd.node(known_hosts=file)), PROGRAM, 20)


def test_a_revoked_host_key_is_refused(ssh: Ssh, sshd: Any, tmp_path: Path) -> None:
    file = sshd.know(tmp_path / "known_hosts")
    line = file.read_text()
    file.write_text(line + "@revoked * " + line.split(" ", 1)[1])
    error = trouble(ssh, route(sshd.node(known_hosts=file)))
    assert error.kind == "host key"
    assert f"revoked host key ({file} line 2)" in error.what


def test_accept_new_learns_an_unknown_key_and_still_refuses_a_changed_one(
    ssh: Ssh, sshd: Any, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "known_hosts"
    accept = "-o StrictHostKeyChecking=accept-new"
    assert ssh.ask(route(sshd.node(known_hosts=file, ssh_args=accept)), PROGRAM, 20)
    assert Ssh().ask(route(sshd.node(known_hosts=file)), PROGRAM, 20)
    sshd.keygen("changed_host")
    sshd.know(file, "changed_host")
    assert trouble(Ssh(), route(sshd.node(known_hosts=file, ssh_args=accept))).kind == "host key"


# The route


def test_through_a_jump_host_whose_key_is_checked(sshd: Any, tmp_path: Path) -> None:
    way = route(sshd.node())
    through = replace(way, jumps=(way.target,))
    ssh = Ssh()
    assert ANSWER.encode() in ssh.ask(through, PROGRAM, 20)
    assert ANSWER.encode() in ssh.ask(through, PROGRAM, 20)
    ssh.close()
    stranger = replace(way.target, user_known_hosts=(str(tmp_path / "none"),))
    error = trouble(Ssh(), replace(way, jumps=(stranger,)))
    assert error.kind == "host key"
    assert error.what.startswith(f"jump host 127.0.0.1:{sshd.port}: the host key of")
    error = trouble(ssh := Ssh(), replace(through, target=stranger))
    assert error.kind == "host key"
    assert error.what.startswith("the host key of")
    ssh.close()


def test_a_node_its_jump_host_cannot_reach(ssh: Ssh, sshd: Any) -> None:
    way = route(sshd.node())
    error = trouble(ssh, replace(way, target=replace(way.target, port=1), jumps=(way.target,)))
    assert error.kind == "unreachable"
    assert f"jump host 127.0.0.1:{sshd.port} cannot reach 127.0.0.1:1" in error.what


def test_through_a_proxy_command(ssh: Ssh, sshd: Any) -> None:
    known = f"-F none -o UserKnownHostsFile={sshd.known_hosts} -o BatchMode=yes"
    command = f"ssh {known} -i {sshd.key_file} -p {sshd.port} -l {sshd.user} -W %h:%p 127.0.0.1"
    way = route(sshd.node(ssh_args=f"-o 'ProxyCommand={command}'"))
    assert way.target.proxy_command[-2:] == (f"127.0.0.1:{sshd.port}", "127.0.0.1")
    assert ANSWER.encode() in ssh.ask(way, PROGRAM, 20)


@pytest.mark.parametrize(
    ("variables", "kind", "what", "fix"),
    [
        ({"ansible_port": 1}, "unreachable", "127.0.0.1:1 refused the connection", "sshd"),
        (
            {"ansible_host": "no-such-node.invalid"},
            "unreachable",
            "no-such-node.invalid does not resolve",
            "",
        ),
        (
            {"ansible_python_interpreter": "/opt/none/python3"},
            "python",
            "/opt/none/python3 is not installed on the node",
            "ansible_python_interpreter",
        ),
    ],
    ids=["refused", "a name that does not resolve", "no Python"],
)
def test_what_the_inventory_has_wrong(
    ssh: Ssh, sshd: Any, variables: dict[str, Any], kind: str, what: str, fix: str
) -> None:
    error = trouble(ssh, route(sshd.node(**variables)))
    assert error.kind == kind
    assert what in error.what
    assert fix in error.fix


# Servers that misbehave


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    """Yield a function that starts a server which runs `behave` on each connection; it returns the port."""
    sockets: list[socket.socket] = []

    def start(behave: Callable[[socket.socket], Any]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                sockets.append(connection)
                behave(connection)

        threading.Thread(target=accept, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for opened in sockets:
        opened.close()


def test_a_node_that_hangs_after_connecting(ssh: Ssh, sshd: Any, serve: Callable[..., int]) -> None:
    port = serve(lambda _: None)
    error = trouble(ssh, route(sshd.node(ansible_port=port)), seconds=1)
    assert error.kind == "hung"
    assert error.unreachable


def test_a_server_silent_for_longer_than_a_handshake_may_take_hangs(
    ssh: Ssh, sshd: Any, serve: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """paramiko gives up before the node's deadline, with the same message as for a closed connection."""

    def gives_up(_self: paramiko.Transport, timeout: float) -> None:
        time.sleep(timeout)
        raise paramiko.SSHException("Error reading SSH protocol banner")

    monkeypatch.setattr("provision.remote.ssh.client.HANDSHAKE_TIMEOUT", 0.5)
    monkeypatch.setattr(paramiko.Transport, "start_client", gives_up)
    error = trouble(ssh, route(sshd.node(ansible_port=serve(lambda _: None))), seconds=60)
    assert error.kind == "hung"
    assert "accepted the connection and then sent nothing" in error.what


def test_a_node_that_hangs_up_at_once(ssh: Ssh, sshd: Any, serve: Callable[..., int]) -> None:
    """The connection is retried until the deadline; the error gives the number of tries and a remedy."""
    target = route(sshd.node(ansible_port=serve(lambda connection: connection.close())))
    error = trouble(ssh, target, seconds=3)
    assert error.kind == "unreachable"
    # Pauses are drawn from the upper half of 0.5, 1 and 2 s: two (a slow machine) to four tries fit.
    assert re.search(r"closed the connection before an SSH banner came \([2-4] tries in \d s\)", error.what)
    assert "MaxStartups" in error.fix


@pytest.mark.parametrize("behind", ["directly", "a jump host of its own", "a proxy command"])
def test_an_sshd_that_takes_few_connections_at_a_time_is_tried_again(
    behind: str, sshd: Any, tmp_path: Path
) -> None:
    """OpenSSH closes connections beyond MaxStartups before the banner; the others are soon through."""
    narrow = type(sshd)(tmp_path, sshd.program, max_startups=1)
    try:
        outer, inner = route(narrow.node()), route(sshd.node())
        options = f"-F none -o UserKnownHostsFile={narrow.known_hosts} -o BatchMode=yes"
        proxy = f"ssh {options} -i {narrow.key_file} -p {narrow.port} -l {narrow.user} -W %h:%p 127.0.0.1"
        routes = {
            "directly": outer,
            "a jump host of its own": replace(inner, jumps=(outer.target,)),
            "a proxy command": route(sshd.node(ssh_args=f"-o 'ProxyCommand={proxy}'")),
        }
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: Ssh().ask(routes[behind], PROGRAM, 60), range(12)))
    finally:
        narrow.stop()
    assert all(ANSWER.encode() in answer for answer in answers)


def test_what_authentication_or_a_host_key_refuses_is_not_tried_again(
    ssh: Ssh, sshd: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tcp = Mock(wraps=client.tcp)
    monkeypatch.setattr(client, "tcp", tcp)
    assert trouble(ssh, route(sshd.node(known_hosts=tmp_path / "none"))).kind == "host key"
    assert trouble(ssh, route(sshd.node(key=sshd.keygen("unknown")))).kind == "auth"
    assert tcp.call_count == 2
    known = f"-F none -o UserKnownHostsFile={sshd.known_hosts} -o BatchMode=yes"
    command = f"ssh {known} -i {sshd.folder}/unknown -p {sshd.port} -l {sshd.user} -W %h:%p 127.0.0.1"
    began = time.monotonic()
    error = trouble(ssh, route(sshd.node(ssh_args=f"-o 'ProxyCommand={command}'")), seconds=60)
    assert "Permission denied" in error.what
    assert time.monotonic() - began < 30


def test_what_is_not_ssh(ssh: Ssh, sshd: Any, serve: Callable[..., int]) -> None:
    def web(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 200)
        connection.close()

    error = trouble(ssh, route(sshd.node(ansible_port=serve(web))))
    assert error.kind == "unreachable"
    assert "not an SSH server" in error.what


class Server(paramiko.ServerInterface):
    """An SSH server in this process, for behaviour that the real one does not show."""

    def __init__(self, password: str | None) -> None:
        self.password = password
        self.seen: list[str] = []

    def get_allowed_auths(self, _username: str) -> str:
        return "password" if self.password else "publickey"

    def check_auth_password(self, _username: str, password: str) -> int:
        self.seen.append(password)
        return paramiko.common.AUTH_SUCCESSFUL if password == self.password else paramiko.common.AUTH_FAILED

    def check_auth_publickey(self, _username: str, _key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_FAILED if self.password else paramiko.common.AUTH_SUCCESSFUL

    def check_channel_request(self, _kind: str, _number: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, _command: bytes) -> bool:
        channel.sendall(ANSWER.encode())
        return True


@pytest.fixture
def serve_ssh(
    serve: Callable[..., int], sshd: Any, tmp_path: Path
) -> Iterator[Callable[[Server], dict[str, Any]]]:
    transports: list[paramiko.Transport] = []

    def start(server: Server) -> dict[str, Any]:
        """Return the variables of a node that leads to this server."""

        def behave(connection: socket.socket) -> None:
            transport = paramiko.Transport(connection)
            transports.append(transport)
            transport.add_server_key(
                paramiko.Ed25519Key.from_private_key_file(str(sshd.folder / "host_ed25519"))
            )
            transport.start_server(event=threading.Event(), server=server)

        port = serve(behave)
        known = sshd.know(tmp_path / f"known_{port}", name=f"[127.0.0.1]:{port}")
        return {"ansible_port": port, "known_hosts": known}

    yield start
    for transport in transports:
        transport.close()


def test_a_password(ssh: Ssh, sshd: Any, serve_ssh: Callable[[Server], dict[str, Any]]) -> None:
    server = Server(password="hunter2")
    variables = serve_ssh(server)
    assert ANSWER.encode() in ssh.ask(route(sshd.node(ansible_password="hunter2", **variables)), PROGRAM, 20)
    error = trouble(ssh, route(sshd.node(ansible_password="wrong-one", **variables)))
    assert error.kind == "auth"
    assert "the password" in error.what
    assert "wrong-one" not in str(error) + error.fix
    assert server.seen == ["hunter2", "wrong-one"]


def test_a_node_that_never_answers_a_request_is_cut_off(
    sshd: Any, serve_ssh: Callable[[Server], dict[str, Any]]
) -> None:
    """paramiko itself waits for the answer forever."""
    stuck = threading.Event()

    class Stuck(Server):
        def check_channel_exec_request(self, _channel: paramiko.Channel, _command: bytes) -> bool:
            stuck.wait(60)
            return True

    ssh = Ssh()
    target = route(sshd.node(**serve_ssh(Stuck(None))))
    errors: list[NodeError] = []
    thread = threading.Thread(target=lambda: errors.append(trouble(ssh, target, seconds=0.5)))
    thread.start()
    while thread.is_alive():
        ssh.expire()
        thread.join(0.1)
    stuck.set()
    assert [error.kind for error in errors] == ["hung"]


FLOOD = "import sys\nwhile True: sys.{}.write('all work and no play ' * 1000)\n"


@pytest.mark.parametrize(
    ("program", "seconds", "kind", "what"),
    [
        (FLOOD.format("stdout"), 20, "too large", "it printed more than 4 MiB"),
        (FLOOD.format("stderr"), 20, "too large", ""),
        ("import time\ntime.sleep(20)\n", 1.5, "hung", "no answer within 1.5 s"),
        ("print('@gpuprov-facts 1 5000')\nprint('{' * 100)\n", 20, "cut", "was cut after"),
    ],
    ids=["flood", "flood of errors", "hang", "cut"],
)
def test_a_program_without_a_whole_answer(
    ssh: Ssh, sshd: Any, program: str, seconds: float, kind: str, what: str
) -> None:
    error = trouble(ssh, route(sshd.node()), program.encode(), seconds)
    assert error.kind == kind
    assert what in error.what


@pytest.mark.parametrize(
    ("command", "kind", "what"),
    [
        (
            "echo This account is currently not available.",
            "garbage",
            "This account is currently not available.",
        ),
        ("true", "garbage", "answered nothing"),
        ("echo Permission problem >&2; exit 3", "garbage", "(status 3): Permission problem"),
        ("exit 127", "python", "python3 is not installed on the node"),
    ],
)
def test_a_login_that_runs_something_else(ssh: Ssh, sshd: Any, command: str, kind: str, what: str) -> None:
    name = "forced_" + base64.b32encode(command.encode()).decode()[:12]
    error = trouble(ssh, route(sshd.node(key=sshd.key(name, command))))
    assert error.kind == kind
    assert what in error.what


# sudo: a stand-in that treats standard input, prompt and exit status as sudo 1.9 does

SUDO = """\
#!/bin/sh
password={password!r}
while [ $# -gt 0 ]; do
    case $1 in
    -n) ask=no ;;
    -S) ask=yes ;;
    -p) prompt=$2; shift ;;
    --) shift; break ;;
    esac
    shift
done
if [ -n "$password" ]; then
    if [ $ask = no ]; then echo "sudo: a password is required" >&2; exit 1; fi
    for attempt in 1 2 3; do
        printf '%s' "$prompt" >&2
        IFS= read -r given || {{ echo "sudo: no password was provided" >&2; exit 1; }}
        echo "$given" >>{log}
        if [ "$given" = "$password" ]; then break; fi
        echo "Sorry, try again." >&2
        if [ $attempt = 3 ]; then echo "sudo: 3 incorrect password attempts" >&2; exit 1; fi
    done
fi
exec env AS_ROOT=yes "$@"
"""
AS_ROOT = b"import os\nif os.environ.get('AS_ROOT') != 'yes': raise SystemExit('not root')\n" + PROGRAM


class Sudo:
    def __init__(self, sshd: Any, log: Path) -> None:
        self.path = sshd.bin / "sudo"
        self.log = log
        self.way = route(sshd.node())

    def install(self, script: str) -> None:
        self.path.write_text(script)
        self.path.chmod(0o755)

    def wants(self, password: str) -> None:
        self.install(SUDO.format(password=password, log=self.log))

    def route(self, password: str | None) -> Route:
        return replace(self.way, become=True, become_password=password)

    @property
    def heard(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def sudo(sshd: Any, tmp_path: Path) -> Iterator[Sudo]:
    stand_in = Sudo(sshd, tmp_path / "heard")
    yield stand_in
    stand_in.path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("wanted", "given", "heard"),
    [("", None, []), ("correct horse", "correct horse", ["correct horse"]), ("", "correct horse", [])],
    ids=["none", "asked for", "not asked for and not sent"],
)
def test_sudo_gets_the_password_that_it_asks_for(
    ssh: Ssh, sudo: Sudo, wanted: str, given: str | None, heard: list[str]
) -> None:
    sudo.wants(wanted)
    answer = ssh.ask(sudo.route(given), AS_ROOT, 20)
    assert ANSWER.encode() in answer
    assert b"horse" not in answer
    assert sudo.heard == heard


def test_sudo_wants_a_password_we_do_not_have(ssh: Ssh, sudo: Sudo) -> None:
    sudo.wants("correct horse")
    error = trouble(ssh, sudo.route(None))
    assert (error.kind, error.what) == ("sudo", "sudo needs a password")
    assert "ansible_become_password" in error.fix


def test_a_wrong_password_is_tried_once(ssh: Ssh, sudo: Sudo) -> None:
    sudo.wants("correct horse")
    error = trouble(ssh, sudo.route("battery staple"))
    assert (error.kind, error.what) == ("sudo", "sudo refused the password")
    assert "staple" not in str(error) + error.fix
    assert sudo.heard == ["battery staple"]


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("user is not in the sudoers file.", "this user may not use sudo"),
        ("sudo: sorry, you must have a tty to run sudo", "sudo wants a terminal"),
        (
            "Sorry, user x is not allowed to execute '/usr/bin/python3' as root on gpu-01.",
            "sudo does not let this user run Python as root",
        ),
        ("sudo: something new", "sudo reported: sudo: something new"),
    ],
)
@pytest.mark.parametrize("password", [None, "secret"])
def test_sudo_refuses(ssh: Ssh, sudo: Sudo, said: str, what: str, password: str | None) -> None:
    sudo.install(f'#!/bin/sh\necho "{said}" >&2\nexit 1\n')
    error = trouble(ssh, sudo.route(password))
    assert (error.kind, error.what) == ("sudo", what)


def test_no_sudo_on_the_node(ssh: Ssh, sudo: Sudo) -> None:
    sudo.install("#!/bin/sh\necho \"env: 'sudo': No such file or directory\" >&2\nexit 127\n")
    error = trouble(ssh, sudo.route(None))
    assert (error.kind, error.what) == ("sudo", "sudo is not installed on the node")

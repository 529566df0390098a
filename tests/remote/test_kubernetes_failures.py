"""Faults between gpuprov and a Kubernetes API server: one line each, with a remedy, without the token.
No change is applied twice, and every call has a deadline."""

from __future__ import annotations

import contextlib
import datetime
import gc
import http.server
import itertools
import socket
import ssl
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from provision.remote.schedulers.kubernetes import Kubernetes, Member
from tests.support import kubernetes_api
from tests.support.kubernetes_api import TOKEN, Failure, Served, scheduler

NODE = "/api/v1/nodes/gpu-01"
LOST = {"gpu-01": "GPU 3 is lost"}
FORBIDDEN = (
    'nodes "gpu-01" is forbidden: User "system:serviceaccount:gpuprov:gpuprov" cannot patch resource "nodes" '
    'in API group "" at the cluster scope'
)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with kubernetes_api.serve(tmp_path) as found:
        found.api.add_node("gpu-01")
        yield found


def one(kubeconfig: Path | None, timeout: float = 20.0, context: str = "") -> Kubernetes:
    return scheduler({"gpu-01": Member("gpu-01", kubeconfig, context)}, timeout=timeout)


def told(cluster: Kubernetes) -> str:
    """Return the error of a failed observation, after checking that it is one line without the token."""
    node = cluster.look(["gpu-01"])["gpu-01"]
    assert node.error
    assert "\n" not in node.error
    assert TOKEN not in node.error
    assert (node.state, node.takes_jobs, node.jobs) == ("", False, ())
    return node.error


# --- answers of the API server


def test_a_token_that_has_expired(served: Served) -> None:
    served.api.failures = [Failure("", ".*", 401, {"message": "Unauthorized", "reason": "Unauthorized"})]
    assert "(401): the token is wrong or has expired" in told(one(served.kubeconfig))


def test_a_token_that_was_renewed_in_the_kubeconfig_is_taken(served: Served) -> None:
    cluster = one(served.kubeconfig)
    assert cluster.look(["gpu-01"])["gpu-01"].error == ""
    served.kubeconfig.write_text(served.kubeconfig.read_text().replace(TOKEN, "the-next"))
    served.api.failures = [Failure("", ".*", 401, times=1)]
    assert cluster.drain(LOST) == {}
    assert served.api.came[-1].headers["Authorization"] == "Bearer the-next"


def test_rights_that_are_too_small_are_named(served: Served) -> None:
    cluster = one(served.kubeconfig)
    served.api.failures = [Failure("PATCH", NODE, 403, {"message": FORBIDDEN, "reason": "Forbidden"})]
    said = cluster.drain(LOST)["gpu-01"]
    assert f"does not allow patch nodes (403): {FORBIDDEN}; docs/examples/kubernetes/rbac.yml" in said
    served.api.failures = [Failure("GET", "/api/v1/pods", 403)]
    assert "does not allow list pods (403)" in told(cluster)


def test_an_eviction_that_is_not_allowed_is_not_tried_until_the_deadline(served: Served) -> None:
    cluster = one(served.kubeconfig)
    served.api.add_pod("train", "gpu-01")
    cluster.drain(LOST)
    served.api.failures = [Failure("POST", ".*/eviction", 403)]
    began = time.monotonic()
    assert "does not allow create pods/eviction (403)" in cluster.evict(["gpu-01"], 60)["gpu-01"]
    assert time.monotonic() - began < 20


def test_a_node_that_kubernetes_does_not_know(served: Served) -> None:
    cluster = scheduler({"gpu-01": Member("other", served.kubeconfig)})
    said = "has no node other (404): set gpuprov_scheduler_name"
    assert said in told(cluster)
    assert said in cluster.drain(LOST)["gpu-01"]


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again(served: Served, code: int) -> None:
    served.api.failures = [Failure("PATCH", NODE, code, headers={"Retry-After": "0"}, times=2)]
    assert one(served.kubeconfig).drain(LOST) == {}
    assert [each.method for each in served.api.changes()] == ["PATCH"] * 3
    assert served.api.node("gpu-01")["spec"]["unschedulable"] is True


def test_the_wait_that_it_asks_for_is_kept(served: Served) -> None:
    served.api.failures = [Failure("GET", NODE, 429, headers={"Retry-After": "2"}, times=1)]
    began = time.monotonic()
    assert one(served.kubeconfig).look(["gpu-01"])["gpu-01"].error == ""
    assert time.monotonic() - began >= 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (429, "has too many requests to take get nodes (429)"),
        (500, "answers get nodes with 500: etcd is away"),
    ],
)
def test_a_server_that_stays_busy(served: Served, code: int, words: str) -> None:
    said = {"message": "etcd is away"} if code == 500 else {}
    served.api.failures = [Failure("GET", NODE, code, said, {"Retry-After": "0"})]
    assert words in told(one(served.kubeconfig))
    assert len(served.api.came) == 4


def test_a_patch_that_was_done_and_not_confirmed_is_not_done_twice(served: Served) -> None:
    served.api.failures = [Failure("PATCH", NODE, 500, headers={"Retry-After": "0"}, times=1, done=True)]
    assert one(served.kubeconfig).drain(LOST) == {}
    assert len(served.api.changes()) == 2, (
        "the second was refused: the node is newer than what it was made of"
    )
    assert served.api.node("gpu-01")["spec"]["taints"] == [
        {"key": "gpuprov.io/unhealthy", "value": "true", "effect": "NoSchedule"}
    ]


def test_a_redirect_is_not_followed_with_the_token(served: Served) -> None:
    served.api.failures = [Failure("GET", NODE, 302, headers={"Location": f"{served.url}/elsewhere"})]
    assert "answers with a redirect (302)" in told(one(served.kubeconfig))
    assert [each.path for each in served.api.came] == [NODE]


@pytest.mark.parametrize("text", ["<html>a proxy's page</html>", "[]", "{"])
def test_an_answer_that_is_none(served: Served, text: str) -> None:
    served.api.failures = [Failure("GET", NODE, 200, text=text)]
    assert "did not answer as one: is its address right?" in told(one(served.kubeconfig))


@pytest.mark.parametrize("strange", [{"metadata": None}, {"spec": []}, {"status": {"conditions": ["x", 7]}}])
def test_an_object_of_another_shape_takes_no_jobs(served: Served, strange: dict[str, Any]) -> None:
    text = str({"metadata": {}, **strange}).replace("'", '"').replace("None", "null")
    served.api.failures = [Failure("GET", NODE, 200, text=text)]
    found = one(served.kubeconfig).look(["gpu-01"])["gpu-01"]
    assert (found.takes_jobs, found.down) == (False, True)


# --- missing answers of the API server


def test_a_server_that_hangs_ends_the_call(served: Served) -> None:
    served.api.failures = [Failure("", ".*", 0)]
    members = {f"n-{number}": Member(f"n-{number}", served.kubeconfig) for number in range(16)}
    began = time.monotonic()
    found = scheduler(members, timeout=2.0).look(list(members))
    assert time.monotonic() - began < 6
    assert all("did not answer in time" in each.error or "not tried" in each.error for each in found.values())


def test_a_hang_during_a_drain_says_so(served: Served) -> None:
    served.api.failures = [Failure("PATCH", ".*", 0)]
    assert "did not answer in time" in one(served.kubeconfig, 2.0).drain(LOST)["gpu-01"]


def test_nobody_listens_there(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    file = kubernetes_api.kubeconfig(tmp_path / "kubeconfig", url)
    members = {f"n-{number}": Member(f"n-{number}", file) for number in range(12)}
    began = time.monotonic()
    found = scheduler(members).look(list(members))
    assert time.monotonic() - began < 10
    assert {each.error for each in found.values()} == {
        f"the API server of {file} cannot be reached: [Errno 111] Connection refused"
    }


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a server with a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    today = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(today).not_valid_after(today + datetime.timedelta(days=2))
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = tmp_path / "server.pem"
    file.write_bytes(pem + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_a_certificate_that_is_not_trusted(tls: str, tmp_path: Path) -> None:
    said = told(one(kubernetes_api.kubeconfig(tmp_path / "kubeconfig", tls)))
    assert "has a certificate that is not trusted" in said
    assert "certificate-authority" in said


def test_verification_is_not_turned_off_by_the_kubeconfig(tls: str, tmp_path: Path) -> None:
    file = kubernetes_api.kubeconfig(tmp_path / "kubeconfig", tls, **{"insecure-skip-tls-verify": True})
    assert "is not asked with insecure-skip-tls-verify" in told(one(file))


def test_no_token_goes_over_a_network_without_tls(tmp_path: Path) -> None:
    file = kubernetes_api.kubeconfig(tmp_path / "kubeconfig", "http://198.51.100.1:6443")
    assert "is not asked without TLS" in told(one(file))


def test_a_proxy_of_the_kubeconfig_is_asked_for_the_way(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(20)
        heard: list[bytes] = []

        def listen() -> None:
            with proxy.accept()[0] as connection:
                heard.append(connection.recv(1000))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        way = {"proxy-url": f"http://127.0.0.1:{proxy.getsockname()[1]}"}
        said = told(one(kubernetes_api.kubeconfig(tmp_path / "kubeconfig", "https://cluster.invalid", **way)))
        thread.join(20)
    assert heard[0].startswith(b"CONNECT cluster.invalid:443 ")
    assert "cannot be reached" in said


# --- credentials and the package


def test_a_kubeconfig_that_does_not_exist(tmp_path: Path) -> None:
    assert told(one(tmp_path / "none")) == f"gpuprov_kubeconfig: there is no {tmp_path / 'none'}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "clusters: 7\ncontexts: x",
        "\x00",
        f"token: {TOKEN}: {TOKEN}",
        f"users: {{token: {TOKEN}",
    ],
)
def test_a_kubeconfig_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    assert f"{file} cannot be used: " in told(one(file))


def test_a_context_that_does_not_exist(served: Served) -> None:
    assert "gpuprov_kubernetes_context" in told(one(served.kubeconfig, context="elsewhere"))


def test_neither_a_kubeconfig_nor_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "set gpuprov_kubeconfig" in told(one(None))


def test_without_the_package_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    assert "pip install 'gpuprov[kubernetes]'" in told(one(None))


def test_a_cluster_that_fails_leaves_the_other_one_alone(served: Served, tmp_path: Path) -> None:
    members = {"gpu-01": Member("gpu-01", served.kubeconfig), "far": Member("far", tmp_path / "none")}
    cluster = scheduler(members)
    assert set(cluster.drain({"gpu-01": "x", "far": "x"})) == {"far"}
    found = cluster.look(["gpu-01", "far"])
    assert (found["gpu-01"].error, bool(found["far"].error)) == ("", True)
    assert "another cluster" in cluster.join("gpu-01", "far", ())


@pytest.mark.parametrize("status", [0, 1])
def test_a_program_for_credentials_that_fails(
    served: Served, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """The client continues without credentials, and the server's 403 would hide the cause."""
    document = yaml.safe_load(served.kubeconfig.read_text())
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh"}
    program["args"] = ["-c", f"echo {TOKEN} >&2; exit {status}"]  # type: ignore[assignment]
    document["users"][0]["user"] = {"exec": program}
    served.kubeconfig.write_text(yaml.safe_dump(document))
    assert "its program for credentials gave none" in told(one(served.kubeconfig))
    assert served.api.came == []
    assert TOKEN not in caplog.text


# --- a server that is malicious, or broken in strange ways


def slow(pieces: Iterator[bytes], pause: float) -> Iterator[str]:
    """Yield the URL of a server that sends each of these pieces to its client after a pause."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with contextlib.suppress(OSError), connection:
                        connection.recv(65536)
                        for piece in pieces:
                            connection.sendall(piece)
                            time.sleep(pause)

        threading.Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"


@pytest.mark.parametrize("head", [HEAD, HEAD[:-2] + b"X-More: ", b"HTTP/1.1 500 No\r\n" + HEAD[17:], b""])
def test_a_server_that_sends_a_byte_now_and_then_ends_the_call(tmp_path: Path, head: bytes) -> None:
    """Each read succeeds in time, but the body, headers, error or first line never ends."""
    pieces = itertools.chain([head] if head else [], itertools.repeat(b"x"))
    with contextlib.contextmanager(slow)(pieces, 0.3) as url:
        began = time.monotonic()
        error = told(one(kubernetes_api.kubeconfig(tmp_path / "kubeconfig", url), timeout=2.0))
    assert "did not answer in time" in error
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"spec": NaN}', "1" * 60_000])
def test_json_that_no_server_sends(served: Served, text: str) -> None:
    served.api.failures = [Failure("GET", NODE, 200, text=text)]
    assert "did not answer as one" in told(one(served.kubeconfig))
    served.api.failures = [Failure("GET", NODE, 500, text=text)]
    assert "answers get nodes with 500" in told(one(served.kubeconfig, timeout=2.0))


def test_a_failed_look_leaves_no_connection_open(served: Served) -> None:
    served.api.failures = [Failure("GET", NODE, 200, text="[")]
    gc.collect()
    gc.disable()
    try:
        asked = one(served.kubeconfig)
        told(asked)
        gone = weakref.ref(asked._clusters[served.kubeconfig, ""])
        del asked
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("strange", [["a"], {"a": "b"}, 7, None, "x" * 100_000])
def test_parts_of_another_type(served: Served, strange: Any) -> None:
    taint = {"key": strange, "effect": strange, "value": strange}
    served.api.add_node("strange", spec={"taints": [taint, strange], "unschedulable": strange})
    served.api.add_node(
        "notes", metadata={"annotations": {"gpuprov.io/pools": strange}}, spec={"taints": strange}
    )
    members = {
        name: Member(name, served.kubeconfig, pool_labels=("pool",))
        for name in ("strange", "notes", "gpu-01")
    }
    found = scheduler(members).look(list(members))
    assert {name: each.error for name, each in found.items()} == dict.fromkeys(members, "")
    assert found["gpu-01"].takes_jobs

"""Faults in a mesh of real Receptors: one line names the worker, and nothing runs there.

Runs only if this machine has Receptor (GPUPROV_TEST_RECEPTOR). With the stand-in: test_worker_stream.py and
test_workers.py.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provision import paths
from provision.remote.reach import partitions
from provision.remote.workers import Link, Worker, mesh
from tests.support.processes import until
from tests.support.receptor import CONTROLLER, PROGRAM, TLS_CLIENT, RealMesh, forget
from tests.support.sshd import Sshd
from tests.support.worker_fleet import asking, interpreter, inventory, linked

pytestmark = pytest.mark.skipif(not PROGRAM, reason="no Receptor here")
OBSERVE = paths.PLAYBOOKS / "observe.yml"
Config = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _nothing_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    forget()
    yield
    forget()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealMesh]:
    """Yield a mesh where the controller and worker-b are connected only through worker-a."""
    folder = tmp_path_factory.mktemp("faults")
    made = RealMesh(folder, interpreter(folder))
    try:
        yield made
    finally:
        made.end()


def entry(config: Config, name: str) -> dict[str, Any]:
    return next(one[name] for one in config if name in one)


def certificate(made: RealMesh, named: str, authority: str, *more: str) -> dict[str, Any]:
    """Return the settings of a certificate for `named`, signed by this authority; `ca` is the mesh's own."""
    if not (made.folder / f"{authority}.key").exists():
        files = (f"outcert={authority}.crt", f"outkey={authority}.key")
        made.run("--cert-init", "commonname=other", "bits=2048", *files)
    made.certify(named, *more, authority=authority, file="odd")
    # A liar does not verify its own certificate.
    return {
        "cert": str(made.folder / "odd.crt"),
        "key": str(made.folder / "odd.key"),
        "skipreceptornamescheck": True,
    }


def of_another_authority(made: RealMesh, config: Config) -> None:
    entry(config, "tls-server").update(certificate(made, "worker-b", "other"))


def expired(made: RealMesh, config: Config) -> None:
    times = ("notbefore=2020-01-01T00:00:00Z", "notafter=2020-02-01T00:00:00Z")
    entry(config, "tls-server").update(certificate(made, "worker-b", "ca", *times))


def lies_about_its_name(made: RealMesh, config: Config) -> None:
    """Turn the member into one that attracts the routes to worker-b."""
    for name in ("tls-server", "tls-client"):
        entry(config, name).update(certificate(made, "worker-c", "ca"))


def without_the_work_type(_made: RealMesh, config: Config) -> None:
    config[:] = [one for one in config if "work-command" not in one]


def takes_work_unsigned(_made: RealMesh, config: Config) -> None:
    entry(config, "work-command")["verifysignature"] = False


def knows_another_signature(made: RealMesh, config: Config) -> None:
    for words in (["genrsa", "-out", "o.key", "2048"], ["rsa", "-in", "o.key", "-pubout", "-out", "o.pub"]):
        subprocess.run(["openssl", *words], cwd=made.folder, check=True, capture_output=True)
    entry(config, "work-verification")["publickey"] = str(made.folder / "o.pub")


FAULTS: dict[Callable[[RealMesh, Config], None], str] = {
    of_another_authority: "its certificate, or ours there, is not accepted .*signed by unknown authority",
    expired: "a certificate has expired",
    lies_about_its_name: "is not accepted .*certificate is valid for Receptor node ID worker-c, not worker-b",
    without_the_work_type: "its Receptor does not have the work type gpuprov-worker, or takes it unsigned",
    takes_work_unsigned: "its Receptor does not have the work type gpuprov-worker, or takes it unsigned",
    knows_another_signature: "its Receptor does not accept the signature of our work",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_worker_that_cannot_be_trusted_is_named_and_its_nodes_are_anothers(
    real: RealMesh, fault: Callable[[RealMesh, Config], None]
) -> None:
    config = real.config("worker-b")
    fault(real, config)
    real.again("worker-b", config)
    both = tuple(Worker(name, real.worker_socket(name)) for name in ("worker-b", "worker-a"))
    links = {"gpu-01": Link(both[:1], real.socket, TLS_CLIENT), "gpu-02": Link(both, real.socket, TLS_CLIENT)}
    try:
        shares, stranded = mesh.assigned({name: {} for name in links}, links)
    finally:
        real.again("worker-b", real.config("worker-b"))
    assert [(share.worker, list(share.hosts)) for share in shares] == [("worker-a", ["gpu-02"])]
    assert list(stranded) == ["gpu-01"]
    with pytest.raises(Exception, match=f"^worker worker-b: .*{FAULTS[fault]}"):
        raise stranded["gpu-01"]
    assert stranded["gpu-01"].fix
    assert real.left() == []


def worked_on(sshd: Sshd, made: RealMesh, mark: Path, event: Callable[[], None]) -> Any:
    """Return the result for worker-b's nodes when `event` happens in the middle of their work."""
    slow = f"import time; open({str(mark)!r}, 'w').write('x'); time.sleep(12); print('done')"
    hosts = asking(linked(inventory(sshd, made, "worker-b")), slow)

    def happen() -> None:
        until(mark.exists)
        event()

    thread = threading.Thread(target=happen)
    thread.start()
    outcomes = partitions.run_sharded(OBSERVE, hosts)
    thread.join()
    return outcomes


def test_a_mesh_that_is_cut_in_the_middle_of_work_costs_nothing_once_it_is_whole(
    sshd: Sshd, real: RealMesh, tmp_path: Path
) -> None:
    def cut() -> None:
        real.stop("worker-a")  # between the controller and worker-b
        time.sleep(5)
        real.begin("worker-a")

    outcomes = worked_on(sshd, real, tmp_path / "task", cut)
    assert {one.status for one in outcomes.values()} == {"ok"}, outcomes
    until(lambda: not real.left())


def test_a_controller_whose_receptor_is_restarted_in_the_middle_of_work_loses_nothing(
    sshd: Sshd, real: RealMesh, tmp_path: Path
) -> None:
    real.wait()

    def restart() -> None:
        real.processes[CONTROLLER].kill()
        real.processes[CONTROLLER].wait()
        time.sleep(2)
        real.begin(CONTROLLER)

    outcomes = worked_on(sshd, real, tmp_path / "task", restart)
    assert {one.status for one in outcomes.values()} == {"ok"}, outcomes
    until(lambda: not real.left())

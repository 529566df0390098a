"""Start, stop and status of a lab."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuprov_lab import (
    host,
    inventory_file,
    layer,
    leftovers,
    mirror,
    network,
    node,
    process,
    real_smi,
    record,
    repository,
    signing,
    silicon_state,
    trees,
)
from gpuprov_lab.command import call, locked, waiting_lock
from gpuprov_lab.folders import remove_tree
from gpuprov_lab.places import CACHE, LOCKS, STATE, LabPlace, make_root_only
from gpuprov_lab.record import LabRecord, NodeRecord
from gpuprov_lab.releases import RELEASES
from gpuprov_lab.spec import NodeSpec
from provision.errors import LabError
from provision.terminal import Progress

SERVER = Path(__file__).with_name("server.py")


def up(
    name: str,
    wanted: tuple[NodeSpec, ...],
    inventory: Path,
    progress: Progress,
    *,
    seed: int | None = None,
    speed: float | None = None,
    fresh: bool = False,
    images: Mapping[str, Sequence[Path]] | None = None,
) -> LabRecord:
    """Bring lab `name` up with at least the nodes `wanted`; running nodes are kept. Write its inventory.

    `speed`: how many times faster than real the simulated tools run; None means 1, or the value of an
    existing lab (`seed` likewise). `images`: the initial disks of a new node by its name (node.prepare);
    other nodes are bare. A new lab that cannot be completed (an error, Ctrl-C) is removed again; an existing
    one is left as is. Raises LabError.
    """
    host.require_root()
    make_root_only(STATE)
    with locked(LOCKS / f"{name}.lock", f"the lab {name!r}"):
        if fresh:
            leftovers.remove(name)
        known = record.load(name)
        try:
            return _up(name, known, wanted, inventory, progress, seed, speed, images or {})
        except BaseException:
            if known is None:
                progress.say("removing the new nodes")
                leftovers.remove(name)
                _after_last_lab()
            raise


def _up(
    name: str,
    known: LabRecord | None,
    wanted: tuple[NodeSpec, ...],
    inventory: Path,
    progress: Progress,
    seed: int | None,
    speed: float | None,
    images: Mapping[str, Sequence[Path]],
) -> LabRecord:
    say = progress.step
    releases = {node.release for node in wanted} | {node.release for node in (known.nodes if known else ())}
    host.install_missing(say, rpms=any(RELEASES[release].dnf for release in releases))
    lab = _reserve(name, known, wanted, inventory, seed, speed)
    say("fixture repository")
    built = repository.ensure_repository(say, releases={node.release for node in lab.nodes})
    text = inventory_file.render(lab, built)
    inventory_file.write(inventory, text)
    host.raise_limits()
    network.ensure_bridge(lab.octet, name)
    places = _trees({n.release for n in lab.nodes}, say)
    _serve(lab, built)
    public = _lab_key(lab.place)
    say(f"booting {len(lab.nodes)} nodes")
    for member in lab.nodes:
        node.prepare(lab, member, images.get(member.name, ()))
        if member.real_nvidia_smi and (why := real_smi.install(lab.node_place(member).silicon)):
            progress.say(f"{member.name} has no nvidia-smi of NVIDIA's but the simulator: {why}")
    lab.place.known_hosts.write_text("".join(node.host_key_line(lab, n) for n in lab.nodes))
    for member in lab.nodes:
        over = layer.ensure_layer(lab.place, member.release, lab.bridge_address, public)
        node.power_on(lab, member, over, places[member.release])
    _wait_all(lab, progress)
    return lab


def _reserve(
    name: str,
    known: LabRecord | None,
    wanted: tuple[NodeSpec, ...],
    inventory: Path,
    seed: int | None,
    speed: float | None,
) -> LabRecord:
    """Save the lab's record before anything is created, so that `down` finds it even after a kill now."""
    with waiting_lock(LOCKS / ".shared"):
        lab = known or LabRecord(name, network.free_octet(record.octets()), seed or 1, speed or 1.0)
        if (seed or lab.seed, speed or lab.speed) != (lab.seed, lab.speed):
            raise LabError(
                f"lab {name!r} was made with --seed {lab.seed} --speed {lab.speed:g}",
                "lab up --fresh makes it again",
            )
        lab = replace(lab.with_nodes(wanted), inventory=str(inventory.absolute()))
        lab.save()
    return lab


def _trees(releases: set[str], say: Callable[[str], None]) -> dict[str, Path]:
    """Build the base trees through the package cache, which is running afterwards in any case."""
    source = mirror.debian_mirror()
    places = {}
    if source is None:  # only mmdebstrap knows a mirror: build directly, then read the mirror from the tree
        places = {release: trees.ensure_tree(release, None, say) for release in sorted(releases)}
        source = trees.mirror_of(next(iter(places.values())))
    port = mirror.ensure_cache(source)
    for release in sorted(releases - set(places)):
        places[release] = trees.ensure_tree(release, f"http://127.0.0.1:{port}/debian", say)
    return places


def _serve(lab: LabRecord, built: repository.Repository) -> None:
    """Point the lab's server at the new repository, and start it unless it runs."""
    new = lab.place.folder / "www.new"
    new.unlink(missing_ok=True)
    new.symlink_to(built.www)
    os.replace(new, lab.place.www)  # noqa: PTH105 - says what it does
    pidfile, log = lab.place.folder / "server.pid", lab.place.folder / "server.log"
    if process.running(pidfile):
        return
    options = {
        "--folder": lab.place.www,
        "--address": lab.bridge_address,
        "--http-port": repository.HTTP_PORT,
        "--cache-port": layer.CACHE_PORT,
        "--cache-port-file": mirror.PORT_FILE,
    }
    words = [str(word) for option in options.items() for word in option]
    process.start([sys.executable, "-I", str(SERVER), *words], pidfile, log)
    if not process.wait_until(lambda: mirror.answers(lab.bridge_address, repository.HTTP_PORT), 15):
        raise LabError(f"the lab's server on {lab.bridge_address} did not start within 15 s", f"see {log}")


def _lab_key(place: LabPlace) -> str:
    """Return the public key for the lab's nodes, generated if missing."""
    if not place.key.exists():
        call(
            "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"gpuprov-lab-{place.name}", "-f", place.key
        )
    return place.key.with_suffix(".pub").read_text()


def _wait_all(lab: LabRecord, progress: Progress) -> None:
    give_up = threading.Event()
    with ThreadPoolExecutor(max_workers=16) as pool:
        waits = {pool.submit(node.wait_ready, lab, member, give_up): member for member in lab.nodes}
        try:
            for wait in as_completed(waits):
                member = waits[wait]
                state = wait.result()
                how = "" if state == "running" else f", systemd reports {state}"
                progress.done(f"{member.name}  {lab.address(member)}  {member.sku}  {member.release}{how}")
        except BaseException:
            give_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def down(name: str, say: Callable[[str], None]) -> bool:
    """Remove lab `name` and everything it made on this host; True if anything existed. Safe to repeat."""
    host.require_root()
    make_root_only(STATE)
    with locked(LOCKS / f"{name}.lock", f"the lab {name!r}"):
        there = bool(leftovers.find(name))
        if there:
            say(f"shutting down the lab {name!r}")
        leftovers.remove(name)
        _after_last_lab()
    return there


def down_all(say: Callable[[str], None]) -> list[str]:
    """Remove every lab of this host; returns their names."""
    host.require_root()
    return [name for name in leftovers.labs_seen() if down(name, say)]


def purge() -> None:
    """Remove the caches (trees, packages, repositories, keys); raises LabError while a lab exists."""
    host.require_root()
    labs = leftovers.labs_seen()
    if labs:
        raise LabError(f"the caches are in use by {', '.join(labs)}", "gpuprov lab down --all --purge")
    mirror.stop_cache()
    remove_tree(CACHE)
    remove_tree(STATE)


def _after_last_lab() -> None:
    """Remove the leftovers of killed builders, and after the last lab everything that labs share."""
    trees.abandon_builds()
    with waiting_lock(LOCKS / ".shared"):
        if not leftovers.labs_seen():
            mirror.stop_cache()
            signing.stop_agent()
            host.restore_limits()


def power(name: str, member: str, on: bool) -> None:
    """Switch one node on (and wait until it has booted) or off (its disk stays)."""
    host.require_root()
    with locked(LOCKS / f"{name}.lock", f"the lab {name!r}"):
        lab = record.existing(name)
        target = lab.node(member)
        if not on:
            node.power_off(lab, target)
            return
        mirrored = trees.tree_path(target.release)
        over = layer.ensure_layer(lab.place, target.release, lab.bridge_address, _lab_key(lab.place))
        node.power_on(lab, target, over, mirrored)
        node.wait_ready(lab, target)


def status(lab: LabRecord) -> list[dict[str, Any]]:
    """Return a mapping per node: name, address, sku, release, state (`off`, `booting`, `up`), faults.

    Nodes that should have NVIDIA's own nvidia-smi also report who prints it (real_smi.printer)."""

    def one(member: NodeRecord) -> dict[str, Any]:
        place = lab.node_place(member)
        state = "off"
        if process.running(place.pidfile):
            state = "up" if node.answers(lab.address(member), 2) else "booting"
        return {
            "node": member.name,
            "address": lab.address(member),
            "sku": member.sku,
            "release": member.release,
            "state": state,
            "faults": silicon_state.faults(place),
            **({"nvidia_smi": real_smi.printer(place.silicon)} if member.real_nvidia_smi else {}),
        }

    with ThreadPoolExecutor(max_workers=16) as pool:
        return list(pool.map(one, lab.nodes))


def ssh_command(lab: LabRecord, member: str, words: Sequence[str]) -> list[str]:
    """Return the ssh command line for `lab ssh`."""
    if words and words[0] == "--":
        words = words[1:]
    return node.ssh(lab, lab.node(member), [node.remote_text(words)] if words else [], quiet=False)

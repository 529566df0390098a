"""The family host: memory, file systems, services and NCCL variables, on file trees."""

from __future__ import annotations

import os

from tests.node.machine import Tree

FSTAB = """\
# /etc/fstab
UUID=0f3a / ext4 errors=remount-ro 0 1
/dev/nvme1n1p1 /scratch xfs defaults 0 0
LABEL=image /image squashfs ro 0 0
server:/home /home nfs rw 0 0
tmpfs /run/x tmpfs rw 0 0
/swap.img none swap sw 0 0
"""
MOUNTS = "/dev/sda2 / ext4 {} 0 0\n/dev/nvme1n1p1 /scratch xfs {} 0 0\nserver:/home /home nfs ro 0 0\n"


def test_memory_is_counted_by_the_blocks_that_the_firmware_gave(tree: Tree) -> None:
    assert tree.values("memory.installed_gib") == {"memory.installed_gib": None}
    tree.file("/sys/devices/system/memory/block_size_bytes", "80000000\n")
    for number in range(7):
        tree.file(f"/sys/devices/system/memory/memory{number}/state", "online\n")
    tree.file("/sys/devices/system/memory/power/control", "auto\n")
    assert tree.values("memory.installed_gib") == {"memory.installed_gib": 14}


def test_read_only_are_local_file_systems_that_fstab_has_writable(tree: Tree) -> None:
    assert tree.values("file.read_only_mounts") == {"file.read_only_mounts": []}
    tree.file("/etc/fstab", FSTAB)
    tree.file("/proc/1/mounts", MOUNTS.format("rw,relatime", "rw") + "/dev/x /image squashfs ro 0 0\n")
    assert tree.values("file.read_only_mounts") == {"file.read_only_mounts": []}
    tree.file("/proc/1/mounts", MOUNTS.format("rw,relatime", "ro,noatime"))
    assert tree.values("file.read_only_mounts") == {"file.read_only_mounts": ["/scratch"]}
    tree.file("/proc/1/mounts", MOUNTS.format("ro", "rw"))
    assert tree.values("file.read_only_mounts") == {"file.read_only_mounts": ["/"]}


def test_the_space_of_each_file_system_is_told_once(tree: Tree) -> None:
    tree.file("/var/log/x", "")
    (row,) = tree.values("file.free_space")["file.free_space"]
    status = os.statvfs(tree.root)
    assert row["path"] == "/"
    assert abs(row["free_percent"] - 100 * status.f_bavail / status.f_blocks) < 2
    assert 0 <= row["free_inodes_percent"] <= 100


def test_the_services_that_are_active_are_named(tree: Tree) -> None:
    shown = (
        "munge.service         loaded active running MUNGE authentication service\n"
        "getty@tty1.service    loaded active running Getty on tty1\n"
        "sysstat.service loaded active exited  Resets System Activity Logs\n"
    )
    tree.file("/answer", shown)
    tree.tool(
        "systemctl", f'[ "$1 $3" = "list-units --state=active" ] || exit 9\n/bin/cat {tree.root}/answer'
    )
    assert tree.values("service.running") == {"service.running": ["munge", "getty@tty1", "sysstat"]}


def test_variables_of_nccl_are_told_with_their_place_and_nothing_else_of_the_files(tree: Tree) -> None:
    tree.file("/etc/environment", 'PATH="/bin"\nTOKEN=secret\nNCCL_P2P_DISABLE="1"\n')
    tree.file(
        "/etc/profile.d/nccl.sh", "# export NCCL_SHM_DISABLE=1\nexport NCCL_IB_DISABLE=1 PASSWORD=secret\n"
    )
    tree.file("/etc/nccl.conf", "# Written by gpuprov (role nccl); an edit here is drift.\nNCCL_NET=Socket\n")
    unit = "[Service]\nEnvironment=API_KEY=secret \"NCCL_NET=Socket\" 'NCCL_ALGO=Ring'\n"
    tree.file("/etc/systemd/system/slurmd.service.d/site.conf", unit)
    tree.file("/etc/default/kubelet", "x" * 100_000)
    tree.file("/etc/profile.d/big.sh", "x" * 100_000)
    found = tree.values("file.nccl_variables")["file.nccl_variables"]
    assert "secret" not in str(found)
    assert [(row["file"], row["line"], row["name"], row["value"]) for row in found] == [
        ("/etc/environment", 3, "NCCL_P2P_DISABLE", "1"),
        ("/etc/profile.d/nccl.sh", 2, "NCCL_IB_DISABLE", "1"),
        ("/etc/systemd/system/slurmd.service.d/site.conf", 2, "NCCL_NET", "Socket"),
        ("/etc/systemd/system/slurmd.service.d/site.conf", 2, "NCCL_ALGO", "Ring"),
    ]

"""An image for containers on lab nodes, built without a registry.
It contains the node's Python (for the simulated tools), a shell, and rocminfo, as in AMD's images."""

from __future__ import annotations

RUN = {
    # A node has no cgroup controllers (--cgroups) and no outside network (--network).
    "podman": "sudo podman run --rm --cgroups=disabled --network=none",
    "docker": "sudo docker run --rm --network=none",
}
DOCKER = "docker.io docker-cli containerd runc iptables nftables"
IMAGE = """\
set -e
mkdir -p /tmp/image/usr/bin /tmp/image/usr/lib /tmp/image/usr/lib64 /tmp/image/tmp; cd /tmp/image
for name in bin lib lib64; do ln -s usr/$name $name; done
python=$(readlink -f /usr/bin/python3)
for program in $python /bin/sh /bin/ls /bin/sleep; do
    cp -L $program usr/bin/
    for file in $(ldd $program | grep -o '/[^ ]*'); do mkdir -p .${file%/*}; cp -L $file .$file; done
done
ln -s $(basename $python) usr/bin/python3
cp -r /usr/lib/$(basename $python) usr/lib/
printf '#!/bin/sh\\nexec python3 -I -S /usr/lib/silicon/run.py rocminfo "$@"\\n' > usr/bin/rocminfo
chmod 755 usr/bin/rocminfo
tar -c . > /tmp/image.tar
podman import -q /tmp/image.tar lab
docker import /tmp/image.tar lab
"""

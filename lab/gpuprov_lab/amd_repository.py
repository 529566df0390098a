"""AMD's fixture repositories, laid out below amd/ as on AMD's server: a folder per release, one key.

amd/rocm/rocm.gpg.key
amd/amdgpu/30.30.3/ubuntu/       apt, suites jammy and noble     (el/9.6/main/x86_64/: rpm)
amd/rocm/apt/7.2.3/              the same                        (rocm/el9/7.2.3/main/: rpm)
amd/graphics/7.2.3/ubuntu/       the same                        (el/9.6/main/x86_64/: rpm)
amd/amd-container-toolkit/apt/   the same                        (amd-container-toolkit/el9/main/: rpm)
"""

from __future__ import annotations

import gzip
import hashlib
import time
from pathlib import Path

from gpuprov_lab import debfile, signing
from gpuprov_lab.debfile import Deb
from gpuprov_lab.packages import AMD
from gpuprov_lab.releases import RELEASES

TOP = "amd"
KEY = f"{TOP}/rocm/rocm.gpg.key"
SUITES = ("jammy", "noble")  # Debian nodes use them as well


def is_amds(repository: str) -> bool:
    return repository in AMD


def write_apt(www: Path, home: Path, key: str, repository: str, debs: list[Deb]) -> None:
    """Write one release's repository: packages in pool/, and the same index for each suite."""
    kind, _, release = repository.partition("/")
    of_system = kind in ("amdgpu", "graphics")
    folder = www / TOP / (f"{kind}/{release}/ubuntu" if of_system else f"{kind}/apt/{release}")
    (folder / "pool").mkdir(parents=True)
    stanzas = []
    for deb in debs:
        content = deb.build(folder / "pool").read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        file = {"Filename": f"pool/{deb.filename}", "Size": str(len(content)), "SHA256": digest}
        fields = deb.fields()
        description = fields.pop("Description")
        stanzas.append(debfile.control_text({**fields, **file, "Description": description}))
    index = "\n".join(stanzas).encode()
    indexes = {"Packages": index, "Packages.gz": gzip.compress(index, mtime=0)}
    now = time.strftime("%a, %d %b %Y %H:%M:%S UTC", time.gmtime())
    for suite in SUITES:
        place = folder / "dists" / suite
        (place / "main/binary-amd64").mkdir(parents=True)
        lines = ["Origin: repo.radeon.com", f"Suite: {suite}", f"Codename: {suite}", f"Date: {now}"]
        lines += ["Architectures: amd64", "Components: main", "SHA256:"]
        for name, content in indexes.items():
            (place / "main/binary-amd64" / name).write_bytes(content)
            lines.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} main/binary-amd64/{name}")
        (place / "Release").write_text("\n".join(lines) + "\n")
        signing.sign(home, key, place / "Release")


def rpm_folder(repository: str, family: str) -> str:
    """Return the folder of a release's packages for `family` (el9)."""
    kind, _, release = repository.partition("/")
    if kind not in ("amdgpu", "graphics"):
        return "/".join(filter(None, [TOP, kind, family, release, "main"]))
    versions = {f"el{each.major}": name for name, each in RELEASES.items() if each.dnf and name != "rocky9"}
    system = RELEASES[versions[family]].files["usr/lib/os-release"]
    minor = system.partition('VERSION_ID="')[2].partition('"')[0]
    return f"{TOP}/{kind}/{release}/el/{minor}/main/x86_64"

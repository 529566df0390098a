"""nvcc --version, and the error for any compilation."""

import os
import sys

_BUILT = {
    "12.8": "Fri_Feb_21_20:23:50_PST_2025",
    "12.9": "Tue_May_27_02:21:03_PDT_2025",
    "13.0": "Wed_Aug_20_01:58:59_PM_PDT_2025",
}


def nvcc(node, arguments: list) -> int:
    """Run nvcc. SILICON_VERSION is the compiler's own version, such as 12.9.86."""
    del node
    version = os.environ.get("SILICON_VERSION") or "12.9.86"
    release = ".".join(version.split(".")[:2])
    if not {"--version", "-V"} & set(arguments):
        print(
            "nvcc fatal   : No input files specified; use option --help for more information", file=sys.stderr
        )
        return 1
    print("nvcc: NVIDIA (R) Cuda compiler driver")
    print("Copyright (c) 2005-2025 NVIDIA Corporation")
    print(f"Built on {_BUILT.get(release, 'Fri_Nov__7_07:23:37_PM_PST_2025')}")
    print(f"Cuda compilation tools, release {release}, V{version}")
    print(f"Build cuda_{release}.r{release}/compiler.36037853_0")
    return 0

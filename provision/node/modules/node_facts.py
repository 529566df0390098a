#!/usr/bin/python
"""Looks at a node, as `gpuprov drift` does, and describes it. Part of the collection gpuprov.gpu only:
gpuprov itself hands over what it has observed."""

DOCUMENTATION = r"""
module: node_facts
short_description: Look at a GPU node
description:
  - Describes a machine (its system, its kernels, its GPUs and how they are joined), and reads the
    facts that it is asked for by name. Needs no tool and no driver for the description.
  - A fact that does not exist on the machine is null. One that could not be read is in C(problems), never
    null.
  - Changes nothing. Each fact has eight seconds; a tool that hangs costs its own facts only.
options:
  facts:
    description:
      - Names of facts, such as C(package.nvidia-driver-cuda.version), C(driver.loaded_version) or
        C(service.nvidia-fabricmanager.active). All of them are listed in docs/facts.md of gpuprov.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds for all facts together.
    type: int
    default: 40
author:
  - The gpuprov authors (@gpuprov)
attributes:
  check_mode:
    description: It changes nothing, so it does the same in check mode.
    support: full
"""

EXAMPLES = r"""
- name: Describe the machine
  gpuprov.gpu.node_facts:

- name: See which driver is loaded, and whether fabric manager runs
  gpuprov.gpu.node_facts:
    facts:
      - driver.loaded_version
      - service.nvidia-fabricmanager.active
  register: look

- name: Complain about a driver that is only on the disk
  ansible.builtin.assert:
    that: look.facts['driver.loaded_version'] is not none
"""

RETURN = r"""
facts:
  description: The value of each fact by name, with those that every look returns (C(os.id), C(gpu.pci)).
  returned: always
  type: dict
  sample: {"driver.loaded_version": "580.126.09", "gpu.count": 8}
problems:
  description: Why a fact could not be read, by name.
  returned: always
  type: dict
  sample: {"nvidia_smi.ecc.mode.current": "nvidia-smi: no answer within 8 s"}
root:
  description: Whether the look was made as root. Some facts can be read by root only.
  returned: always
  type: bool
ansible_facts:
  description: The description, which the roles of this collection need.
  returned: always
  type: dict
  contains:
    gpuprov_node:
      description: The system, the kernels and the GPUs. C(sku) and C(architecture) are null when unknown.
      returned: always
      type: dict
      sample:
        os: {id: debian, version_id: "13", codename: trixie, family: debian, arch: x86_64}
        kernel: {release: 6.12.107+deb13-amd64, boot_release: 6.12.107+deb13-amd64}
        gpu:
          vendor: nvidia
          sku: h100-sxm
          count: 8
          architecture: hopper
          fabric: nvswitch
          pci_ids: ["10de:2330"]
          product_names: [NVIDIA H100 80GB HBM3]
"""

import json  # noqa: E402

from ansible.module_utils.basic import AnsibleModule  # noqa: E402
from provision.node.products import PRODUCTS  # noqa: E402

from provision.node.description import describe  # noqa: E402

# Each knows facts by itself; imported here, they are sent along to the node.
from provision.node.observe import (  # noqa: E402, F401
    amd_cdi,
    amd_smi,
    amdgpu,
    certificate,
    clock,
    container,
    container_runtime,
    cpu,
    dkms,
    driver,
    edac,
    fabric,
    file,
    firmware,
    group,
    hca,
    kernel,
    limits,
    memory,
    mig,
    module,
    node_health,
    nvidia_smi,
    nvme,
    package,
    packages,
    pci,
    pgp_key,
    rdma,
    secure_boot,
    service,
    slurm,
    sysctl,
    tcp,
)
from provision.node.observe.answer import answer  # noqa: E402


def main():
    ansible = AnsibleModule(
        argument_spec={
            "facts": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 40},
        },
        supports_check_mode=True,
    )
    request = {"facts": ansible.params["facts"], "seconds": ansible.params["timeout"]}
    found = json.loads(answer(request).decode("utf-8"))
    ansible.exit_json(
        changed=False,
        facts=found["facts"],
        problems=found["problems"],
        root=found["uid"] == 0,
        ansible_facts={"gpuprov_node": describe(found["facts"], PRODUCTS)},
    )


if __name__ == "__main__":
    main()

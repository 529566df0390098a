#!/usr/bin/python
"""Ansible module that observes and describes a node like `gpuprov drift`.
It is only in the collection gpuprov.gpu; gpuprov itself passes its own observations to the roles."""

DOCUMENTATION = r"""
module: node_facts
short_description: Observe a GPU node
description:
  - Describes a machine (its system, its kernels, its GPUs and how they are connected), and reads the
    requested facts. The description needs no tool and no driver.
  - A fact that does not exist on the machine is null. One that could not be read is in C(problems), never
    null.
  - Changes nothing. Each fact has eight seconds; a tool that hangs delays only its own facts.
options:
  facts:
    description:
      - Names of facts, such as C(package.nvidia-driver-cuda.version), C(driver.loaded_version) or
        C(service.nvidia-fabricmanager.active). All of them are listed in docs/facts.md of gpuprov.
    type: list
    elements: str
    default: []
  timeout:
    description: Timeout in seconds for all facts together.
    type: int
    default: 40
author:
  - The gpuprov authors (@gpuprov)
attributes:
  check_mode:
    description: The module changes nothing, so it does the same in check mode.
    support: full
"""

EXAMPLES = r"""
- name: Describe the machine
  gpuprov.gpu.node_facts:

- name: Read the loaded driver's version and the state of fabric manager
  gpuprov.gpu.node_facts:
    facts:
      - driver.loaded_version
      - service.nvidia-fabricmanager.active
  register: look

- name: Fail if no driver is loaded
  ansible.builtin.assert:
    that: look.facts['driver.loaded_version'] is not none
"""

RETURN = r"""
facts:
  description: The value of each fact by name, including those that are always read (C(os.id), C(gpu.pci)).
  returned: always
  type: dict
  sample: {"driver.loaded_version": "580.126.09", "gpu.count": 8}
problems:
  description: Why a fact could not be read, by name.
  returned: always
  type: dict
  sample: {"nvidia_smi.ecc.mode.current": "nvidia-smi: no answer within 8 s"}
root:
  description: Whether the facts were read as root. Some facts can be read by root only.
  returned: always
  type: bool
ansible_facts:
  description: The description of the node, which the roles of this collection need.
  returned: always
  type: dict
  contains:
    gpuprov_node:
      description: The system, the kernels and the GPUs. C(sku) and C(architecture) are null if unknown.
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

# Each one registers its own facts; importing it here sends it to the node.
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
    observed = json.loads(answer(request).decode("utf-8"))
    ansible.exit_json(
        changed=False,
        facts=observed["facts"],
        problems=observed["problems"],
        root=observed["uid"] == 0,
        ansible_facts={"gpuprov_node": describe(observed["facts"], PRODUCTS)},
    )


if __name__ == "__main__":
    main()

"""Loaded kernel modules."""

import os

from provision.node.observe.files import at
from provision.node.observe.probe import FAMILIES, Family, one_each


def module_loaded(name, _attribute):
    # A module built into the kernel has a folder too, but no initstate.
    return os.path.exists(at("/sys/module/%s/initstate" % name.replace("-", "_")))


FAMILIES["module"] = Family(("loaded",), one_each(module_loaded))

"""Performance goals of gpuprov. A result refers to its goal by the key here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Goal:
    """One goal. `unit`: x for ratios. `least`: the value must be at least `limit` instead of at most."""

    work: str
    limit: float
    unit: str = "x"
    against: str = ""
    least: bool = False

    @property
    def asked(self) -> str:
        """The goal in human notation, such as `≤ 0.9x ssh host true`."""
        unit = self.unit if self.unit == "x" else f" {self.unit}" if self.unit else ""
        amount = f"{self.limit:g}{unit}"
        return f"{'≥' if self.least else '≤'} {amount} {self.against}".rstrip()

    def met(self, value: float) -> bool:
        return value >= self.limit if self.least else value <= self.limit


# F: controller CPU of `xargs -P N ssh host true`, key exchange curve25519, host keys checked.
GOALS = {
    "drift.controller": Goal("`drift`, controller CPU", 0.9, against="F"),
    "drift.node": Goal("`drift`, node CPU", 2.5, against="`python3 -I -S -c pass` over ssh"),
    "drift.wall": Goal("`drift`, wall time", 1.3, against="`python3 -c pass` over ssh, as many at a time"),
    "drift.memory": Goal("`drift`, memory at 10,000 nodes", 200, "MB"),
    "workers.controller": Goal("`drift` behind workers, CPU of the controller", 0.1, against="F"),
    "workers.total": Goal(
        "the same, CPU of controller, workers and mesh", 1.3, against="`drift` without workers"
    ),
    "workers.wall": Goal("the same with two workers, wall time", 0.6, against="`drift` without workers"),
    "status.watch": Goal("`status --watch`, controller CPU of a round", 0.35, against="F"),
    "watch.acted": Goal("`watch` of 1,000 nodes, from a fault to a spare that takes jobs", 30, "s"),
    "replace.slowest": Goal("the same, the slowest of 100 trials on light nodes", 30, "s"),
    # 50 MB of code, most of it paramiko, and 70 KB for each connection that is kept open.
    "watch.memory": Goal("`watch` of 1,000 nodes, memory", 140, "MB"),
    "mesh.results": Goal(
        "a look at 100,000 nodes behind 40 workers, simulated, a region dark: nodes with their true result",
        100,
        "%",
        least=True,
    ),
    "mesh.growth": Goal("the same, controller CPU a node", 1.2, against="that of 10,000 nodes"),
    "roles.cpu": Goal(
        "`up` of a bare node, controller CPU", 0.4, against="the first roles under plain Ansible"
    ),
    "roles.wall": Goal("the same, wall time", 0.6, against="the first roles under plain Ansible"),
    "up.converged": Goal("`up` of a converged fleet, controller CPU", 1.2, against="`drift`"),
    "up.ansible": Goal("`up` when Ansible must run, CPU", 1.05, against="bare `ansible-playbook`"),
    "up.large": Goal("the same with results of 20 KB", 1.2, against="bare `ansible-playbook`"),
    "up.memory": Goal("the same, memory for each event more of 20 KB", 1024, "B"),
    "up.processes": Goal(
        "`up` above 500 nodes with K processes, task-hosts a second",
        0.8,
        "",
        "K, until the cores are full",
        least=True,
    ),
    "validate.controller": Goal("`validate`, CPU beyond the tests' own", 1.0, against="1.5 F + 5 ms a node"),
    "validate.mixed": Goal(
        "`validate` of a mixed lab, wall time", 1.1, against="the slowest of its nodes alone"
    ),
    "report.summary": Goal(
        "`report`, summary of 10,000 nodes, CPU", 1.5, against="`json.loads` of the results"
    ),
    "report.memory": Goal("the same, memory", 150, "MB"),
    "report.html": Goal("the same, size of the HTML", 15, "MB"),
    "judge.memory": Goal("`report --rejudge` of 10,000 nodes, memory", 1024, "MB"),
    "inventory": Goal("inventory of 10,000 hosts, CPU", 1.3, against="PyYAML's `CSafeLoader`"),
    "help.cpu": Goal("`gpuprov --help`, CPU", 4, against="`python -c pass`"),
    "help.wall": Goal("`gpuprov --help`, wall time", 3, against="`python -c pass`"),
}

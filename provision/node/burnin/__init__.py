"""Burn-in program of a node, which runs for hours with no controller connected.

It runs the steps of an order, samples sensors and counters meanwhile, and writes both to a spool on disk.
provision/checks/on_node/packed_program.py packs these files and the module gpuprov_run, which starts programs
for them. The module gpuprov_burnin installs them as SPOOL/program, which systemd keeps alive:
`python3 -I -S program burnin SPOOL`. The controller that collects the spool judges; nothing is judged here.

runner.py walks through the order. Each step runs in a separate child, and so does everything else that may
hang. sampler.py is another process, with a program or reader for each source and, where a device can hang
alone, for each device. Only the runner writes events, only the sampler writes telemetry.

The spool, /var/lib/gpuprov/burnin/CAMPAIGN/:

order.json        the order (see order.py)
events.jsonl      events, an object a line: t (seconds since the epoch), up (since boot), boot, event
state.json        the position, replaced atomically
raw/N-CHECK.json.gz        output of the programs of step N, in the format of playbooks/checks.yml
telemetry/BOOT_ID.csv      t,up,source,device,metric=value;metric=value…  (Telemetry)
reserve           room for the last events on a full disk

Standard library only, Python 3.6 syntax.
"""

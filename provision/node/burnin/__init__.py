"""The program that burns a node in, hours long, with nobody connected: runs the steps of an order, samples
sensors and counters meanwhile, and writes both into a spool on the node's disk.

provision/checks/on_node/packed_program.py packs these files and the module gpuprov_run, whose way to run
programs this uses. The module gpuprov_burnin puts them on the node as SPOOL/program, and systemd keeps it
alive: `python3 -I -S program burnin SPOOL`. Whoever collects the spool judges; nothing is judged here.

runner.py walks through the order. Each step runs in a child of its own, and so does everything else that may
hang. sampler.py is one more process, with one program or reader for each source and, where a device can hang
alone, for each device. Only the runner writes events, only the sampler writes telemetry.

The spool, /var/lib/gpuprov/burnin/CAMPAIGN/:

order.json        what to do (order.py says what it must look like)
events.jsonl      what happened, an object a line: t (seconds since the epoch), up (since boot), boot, event
state.json        the position, replaced in one step
raw/N-CHECK.json.gz        what the programs of step N printed, as playbooks/checks.yml answers
telemetry/BOOT_ID.csv      t,up,source,device,metric=value;metric=value…  (Telemetry)
reserve           room for the last words on a full disk

Standard library only, Python 3.6 syntax.
"""

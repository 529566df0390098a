"""The program that runs on nodes: reads facts of the machine (docs/facts.md), prints them as one framed line.

provision/remote/node_program.py makes one text of these files: files.py, probe.py and system.py, the family
of each fact asked, answer.py. The controller sends it, compiled for Pythons of its own version and as text
for others, and followed by a call of `main`, to `python3 -I -S -`. It never writes, installs or leaves
anything, and always answers: whatever may hang (a tool, a file) runs in a child process that is abandoned
when its time is up, and never waited for, because a child stuck in the kernel does not die when it is killed.

Standard library only, Python 3.6 syntax, one namespace for all files: no name is defined twice. Imports are
few and late: json, re and subprocess would each cost as much as starting Python does.
"""

"""The program that runs on nodes, reads their facts (docs/facts.md) and prints one framed line.

provision/remote/node_program.py joins these files into one text: files.py, probe.py and system.py, the family
of each requested fact, answer.py. The controller sends it to `python3 -I -S -`, compiled for Pythons of the
same version and as text for others, followed by a call of `main`. It never writes, installs or leaves
anything, and always answers: whatever may hang (a tool, a file) runs in a child process that is abandoned
at its timeout and never waited for, because a child stuck in the kernel does not die when it is killed.

Standard library only, Python 3.6 syntax, one namespace for all files, so no name is defined twice. Imports
are few and late: json, re and subprocess would each cost as much as starting Python does.
"""

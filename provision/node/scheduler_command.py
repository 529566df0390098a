"""The program that runs commands of a scheduler (`scontrol`, `squeue`) in turn.

It prints all results in one framed line, and runs on the scheduler's host or on the controller. Standard
library only, Python 3.6 syntax. Ansible may template the text on its way: no two characters in it may open a
template.
"""

import os

from provision.node.scheduler_programs import FOLDERS, run

SECONDS = 30  # for one command: longer than Slurm itself waits for its controller (MessageTimeout, 10)


def main(request):
    import binascii
    import json
    import zlib

    folders = request.get("folders") or FOLDERS
    done = []
    for words in request["commands"]:
        one = run(words, folders, request.get("seconds") or SECONDS)
        done.append(one)
        if one["problem"]:
            break  # missing or hanging, like all commands after it
    body = zlib.compress(json.dumps(done).encode("ascii"))
    body = json.dumps({"uid": os.geteuid(), "done": binascii.b2a_base64(body, newline=False).decode("ascii")})
    print("@gpuprov-facts 1 %d\n%s\n@gpuprov-end" % (len(body), body), flush=True)

"""Grammar of the kernel log: start and author of a message, and the text that a user may have chosen.

Any user may name a program, and a crash prints that name: 15 characters of it (TASK_COMM_LEN) first, and the
whole name of the file, with line feeds, carriage returns or U+2028 in it, at the end. Seen with Linux 6.18:

[ 3277.517443] NVRM: Xid (PCI:[11176]: segfault at 0 ip ... error 6 in NVRM: Xid (PCI:0000:1b:00): 79[1132,...

So a message is the driver's if it begins with more of the driver's text than fits into 15 characters.
"""

import re
from typing import Any, List, Tuple

# Everything before a message, in this order: dmesg -r or -x; journalctl or rsyslog; dmesg, dmesg -T; the
# caller, on kernels with CONFIG_PRINTK_CALLER.
KERNEL_STAMP = re.compile(
    r"(?:<\d{1,3}>|[a-z]{1,8} *:[a-z]{1,8} *: )?"
    r"(?:(?:(\d+\.\d+)|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\d{4}-\d\d-\d\dT[\d:.,]{8,15}(?:Z|[+-]\d\d:?\d\d)) (?:\S+ kernel: )?)?"
    r"(?:\[ *(\d+\.\d+)\] ?|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] ?)?"
    r"(?:\[ *[TC]\d{1,10}\] ?)?"
)
LONGEST = 4096  # characters of a joined message; the kernel's are shorter
FOLDED = "\\x0a"  # a line feed within a message, as in /dev/kmsg
PCI_ADDRESS = r"(?:[0-9a-fA-F]{1,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"
XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(%s)((?: GPU-I:\d{1,4})?(?: GPU-CI:\d{1,4})?)\)[^:]*: *(\d{1,6})\b" % PCI_ADDRESS
)
# Prefixes by the macros in its sources: dev_err and drm_err of a device, pr_err, DRM_ERROR, DRM_WARN (names
# no driver, so only two of its messages are matched); then the number of a RAS event, HW_ERR, socket and die.
AMDGPU = re.compile(
    r"(?:amdgpu ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): "
    r"(?:amdgpu: |(?:\[drm[^\]]{0,60}\]+ )?(?:\*ERROR\* )?)"
    r"|(?:kfd kfd: )?amdgpu: |\[drm:[\w.]{1,60} \[amdgpu\]\] \*ERROR\* "
    r"|\[drm\] (?=ASIC reset failed with |RAS event of type ))"
    r"(?:\{\d+\} ?)?(?:\[Hardware [Ee]rror\]:? )?(?:socket: \d+,? (?:die: \d+,? )?)?"
)


def without_stamp(line: str) -> Tuple[Any, str]:
    """Return (seconds in the stamp before a message, None without such a clock; the message)."""
    stamp: Any = KERNEL_STAMP.match(line)
    return stamp.group(1) or stamp.group(2), line[stamp.end() :]


def whole_messages(lines: Any) -> List[str]:
    """Return the messages of a kernel log, one per line: further lines of a message have no stamp."""
    messages: List[str] = []
    stamped = cut = False
    for line in lines:
        stamp = len(without_stamp(line)[1]) < len(line)
        further = not stamp and (stamped or line[:1].isspace()) and not line.startswith("-- ")
        if messages and (further or cut):
            if len(messages[-1]) < LONGEST:
                messages[-1] += FOLDED + line.strip()
        else:
            messages.append(line)
        stamped = stamped or stamp
        cut = line.startswith("[gpuprov: ")  # CUT_MARK: the next line has lost its beginning
    return messages


def amdgpu_words(text: str) -> Tuple[str, str]:
    """Return (PCI address or "", the driver's text) of a message of amdgpu; ("", "") for others."""
    source = AMDGPU.match(text)
    return (source.group(1) or "", text[source.end() :]) if source else ("", "")

"""TCP ports on which a program of this machine listens."""

from provision.node.observe.files import ReadError, read_text
from provision.node.observe.probe import FAMILIES, Family, one_each

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")  # one line for each connection
TABLE_LIMIT = 64 * 1024 * 1024
LISTEN = "0A"  # TCP_LISTEN in the kernel's include/net/tcp_states.h


def listening(port, _attribute):
    """Return whether some program listens on the port, at any address."""
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise ReadError(port + " is not a port")
    suffix = ":%04X" % int(port)
    for table in TABLES:  # the second is absent without IPv6
        for line in (read_text(table, TABLE_LIMIT) or "").splitlines()[1:]:
            # sl local_address rem_address st: "0: 0100007F:24B8 00000000:0000 0A 00000000:00000000 ..."
            fields = line.split(None, 4)
            if len(fields) > 3 and fields[1].endswith(suffix) and fields[3] == LISTEN:
                return True
    return False


FAMILIES["tcp"] = Family(("listening",), one_each(listening))

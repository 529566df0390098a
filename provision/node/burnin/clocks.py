"""The node's two clocks: the wall's, which may jump, and the one since boot, which does not."""

import time

BOOTTIME = 7  # CLOCK_BOOTTIME; Python has a name for it since 3.7
JUMP = 2.0  # seconds between two looks that no clock discipline slews


def since_boot():
    """Seconds since the node booted, time asleep included."""
    return time.clock_gettime(BOOTTIME)


def wall_offset():
    """Seconds the wall clock is ahead of the clock since boot. The two are read at one moment, or again."""
    for _ in range(5):
        before = since_boot()
        wall = time.time()
        if since_boot() - before < 0.2:
            break
    return wall - before


class ClockWatch:
    """Notices when somebody sets the wall clock."""

    def __init__(self, read=wall_offset):
        self.read = read
        self.offset = read()

    def jump(self):
        """Seconds the wall clock jumped since the last look; 0.0 when it did not."""
        offset = self.read()
        moved, self.offset = offset - self.offset, offset
        return round(moved, 3) if abs(moved) >= JUMP else 0.0

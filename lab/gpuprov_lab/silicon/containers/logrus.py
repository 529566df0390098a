"""Log lines of the container toolkit, which it writes with the Go library logrus."""

import sys
import time


def log(level: str, text: str) -> None:
    """One line on standard error, as logrus writes it to what is no terminal."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f'time="{stamp}" level={level} msg="{text}"', file=sys.stderr)

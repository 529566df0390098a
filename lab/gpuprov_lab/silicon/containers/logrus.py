"""Log lines of the container toolkit, which uses the Go library logrus."""

import sys
import time


def log(level: str, text: str) -> None:
    """Print one line on standard error in logrus's format for non-terminals."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f'time="{stamp}" level={level} msg="{text}"', file=sys.stderr)

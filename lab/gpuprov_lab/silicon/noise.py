"""Measurement noise, reproducible from a seed: runs differ, but the same lab repeats the same runs."""

import hashlib
import math
import struct


def fraction(*words) -> float:
    """Return a number in [0, 1) that depends on the words only."""
    text = "\0".join(str(word) for word in words).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big") / float(1 << 56)


def bell(*words) -> float:
    """Return a roughly normal number: mean 0, deviation 1, never beyond 2.5 (outliers are injected)."""
    text = "\0".join(str(word) for word in words).encode()
    # The sum of eight uniform numbers has mean 4 and variance 8/12.
    total = sum(struct.unpack(">8I", hashlib.sha256(text).digest())) / float(1 << 32) - 4.0
    return max(-2.5, min(2.5, total * math.sqrt(1.5)))


def jitter(node, metric: str, device, spread: float) -> float:
    """Return a factor near 1: a small lasting deviation of each device, plus one of each run.

    `spread` is the standard deviation of both together, as a fraction (0.005 = 0.5 %).
    """
    lasting = bell(node.seed, node.name, metric, device)
    passing = bell(node.seed, node.name, metric, device, node.run_number)
    return 1.0 + spread * (0.7 * lasting + 0.7 * passing)


def digits(count: int, *words) -> str:
    """Return `count` decimal digits that depend on the words only."""
    return "".join(str(int(fraction(i, "digit", *words) * 10)) for i in range(count))


def hexadecimal(count: int, *words) -> str:
    """Return `count` (at most 64) hexadecimal digits that depend on the words only."""
    return hashlib.sha256("\0".join(["hex", *map(str, words)]).encode()).hexdigest()[:count]


def identity(*words) -> str:
    """Return a UUID that depends on the words only."""
    found = hexadecimal(32, *words)
    return "-".join((found[:8], found[8:12], found[12:16], found[16:20], found[20:]))

"""Measurement noise that a seed reproduces: no two runs print the same, the same lab prints the same runs."""

import hashlib
import math
import struct


def fraction(*words) -> float:
    """A number in [0, 1) that depends on the words alone."""
    text = "\0".join(str(word) for word in words).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big") / float(1 << 56)


def bell(*words) -> float:
    """Roughly normal, mean 0, standard deviation 1, never beyond 2.5: outliers are injected, not drawn."""
    text = "\0".join(str(word) for word in words).encode()
    # Eight uniform numbers: their sum has mean 4 and variance 8/12.
    total = sum(struct.unpack(">8I", hashlib.sha256(text).digest())) / float(1 << 32) - 4.0
    return max(-2.5, min(2.5, total * math.sqrt(1.5)))


def jitter(node, metric: str, device, spread: float) -> float:
    """A factor near 1: each device has its own small lasting deviation, each run another on top.

    `spread` is the standard deviation of the two together, as a fraction (0.005 = 0.5 %).
    """
    lasting = bell(node.seed, node.name, metric, device)
    passing = bell(node.seed, node.name, metric, device, node.run_number)
    return 1.0 + spread * (0.7 * lasting + 0.7 * passing)


def digits(count: int, *words) -> str:
    """`count` decimal digits that depend on the words alone."""
    return "".join(str(int(fraction(i, "digit", *words) * 10)) for i in range(count))


def hexadecimal(count: int, *words) -> str:
    """`count` (at most 64) hexadecimal digits that depend on the words alone."""
    return hashlib.sha256("\0".join(["hex", *map(str, words)]).encode()).hexdigest()[:count]


def identity(*words) -> str:
    """A UUID that depends on the words alone."""
    found = hexadecimal(32, *words)
    return "-".join((found[:8], found[8:12], found[12:16], found[16:20], found[20:]))

"""Benchmark of detection by `gpuprov validate`: faults and healthy look-alikes on simulated nodes.
The real pipeline judges them. `python -m benchmarks.detection --help`; the numbers are in docs/detection.md.
"""

"""The benchmark of aiostream, run from a clone: `python -m benchmarks`."""

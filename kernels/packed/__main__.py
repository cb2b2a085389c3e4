"""Compile the packed kernels ahead of time, so that the first start of the server need not."""

from kernels.packed import why_unavailable

reason = why_unavailable()
print(f"packed kernels: {'not used: ' + reason if reason else 'compiled'}")

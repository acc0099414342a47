"""Compiled code, for what Python and PyTorch take longer for; needs Numba (`fedkin[fast]`).

loading.py      loads it, if it can be loaded
compilation.py  compilation by Numba, cached on disk
vectors.py      SIMD code
"""

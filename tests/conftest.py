import os

# One thread a process, set before NumPy and torch start their pools: more collapse when anything else runs.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("MPLBACKEND", "Agg")

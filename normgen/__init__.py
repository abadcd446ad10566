"""normgen: normalization kernels as standalone Triton modules, from a YAML spec."""

__version__ = "0.1.0"

"""The machine that serves: host, GPUs, GPU memory, power."""

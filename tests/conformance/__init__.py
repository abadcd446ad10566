"""Generated norms beside the classes of the model libraries, bit for bit."""

"""What the tests share: the oracle, the inputs, and the way from a spec to a module."""

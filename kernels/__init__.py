"""Tensor operations: for each a torch reference and the fastest path for the device at hand."""

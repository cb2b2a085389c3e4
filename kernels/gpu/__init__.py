"""The Triton kernels, one file an operation; each mirrors the module of the same name in `kernels`.

Imported when the first of them is launched, so that `kernels` works, and starts fast, where Triton is absent. Every
file says what it can be compiled for without a GPU (`compile_cases`, read by `python -m kernels.aot`).
"""

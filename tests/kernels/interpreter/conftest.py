"""Tests of Triton kernels in Triton's interpreter: collected only where TRITON_INTERPRET=1, as `test_triton` runs them.

The interpreter computes bfloat16 wrongly (products of its bits; casts that cut off), so that types here are float32 and
float16.
"""

import os

from hypothesis import Phase, settings

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]

# The interpreter takes milliseconds for a tile: few shapes in every run, more with the slow tests; and what fails is
# not made smaller, which takes minutes under hypothesis' tracing.
settings.register_profile(
    "few",
    max_examples=int(os.environ.get("RAGSTONE_EXAMPLES", "3")),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
)
settings.load_profile("few")

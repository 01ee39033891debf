"""The pixels that views are made of are NumPy's rint, clip and transpose of the levels, to the
bit.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from likeness.toolkit.data.images import to_pixels


@given(
    arrays.arrays(
        np.float32,
        st.tuples(st.sampled_from((1, 3)), st.integers(1, 5), st.integers(1, 5)),
        elements=st.floats(-300, 600, width=32),
    )
)
def test_to_pixels(image: np.ndarray) -> None:
    expected = np.clip(np.rint(image), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    np.testing.assert_array_equal(to_pixels(image), expected)
    np.testing.assert_array_equal(to_pixels(image[:, :, ::-1]), expected[:, ::-1])

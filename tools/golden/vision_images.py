# SPDX-License-Identifier: Apache-2.0
"""Test pictures that need no file: the same formula in vision_testkit.h."""

import numpy as np


def picture(width, height, seed):
    """uint8 [height, width, 3]: waves of several lengths and a little noise, all in integers."""
    x = np.arange(width, dtype=np.int64)[None, :, None]
    y = np.arange(height, dtype=np.int64)[:, None, None]
    c = np.arange(3, dtype=np.int64)[None, None, :]
    slow = np.abs((x * (3 + c) + y * (5 - c) + seed * 37) % 510 - 255)
    noise = ((x * 73 + y * 151 + c * 29 + seed * 11) * 2654435761 >> 7) & 63
    return ((slow * 3 + noise * 4) // 4 % 256).astype(np.uint8)

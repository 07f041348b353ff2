# SPDX-License-Identifier: Apache-2.0
"""Which side of the train/test split an example is on: a hash of what it asks, never of how it asks it."""

import zlib

TEST_SHARE = 16  # one key in so many is for the test set


def is_test(key):
    """True for keys of the test set; training generators drop them, test generators keep only them."""
    return zlib.crc32(key.encode()) % TEST_SHARE == 0

"""What networks see of images: the field's scales by hand and by OpenCV's blobs, and what is
refused.
"""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch.testing import assert_close

from likeness.toolkit.data import pixels
from likeness.toolkit.data.pixels import PixelScale

LEVELS = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
BATCH = torch.from_numpy(LEVELS.transpose(2, 0, 1).copy()).float().unsqueeze(0)


def test_faces_as_the_field_feeds_them() -> None:
    # as insightface's ArcFaceONNX, from BGR
    blob = cv2.dnn.blobFromImage(LEVELS, 1 / 127.5, None, (127.5, 127.5, 127.5), swapRB=True)
    assert_close(pixels.ADAFACE()(BATCH)[0], torch.from_numpy(blob), atol=1e-6, rtol=0)
    assert torch.equal(pixels.INSIGHTFACE()(BATCH)[0], (BATCH - 127.5) / 127.5)


def test_images_as_the_field_feeds_them() -> None:
    image = BATCH.double()
    scaled, lengths = pixels.BN_INCEPTION().double()(image)
    assert lengths is None
    # Caffe's: BGR less its means
    expected = image.flip(1) - torch.tensor([104.0, 117.0, 128.0], dtype=torch.float64).view(
        3, 1, 1
    )
    assert_close(scaled, expected, atol=2e-4, rtol=0)
    each = PixelScale((1.0, 2.0, 3.0), (1.0, 2.0, 4.0), scale=1.0, bgr=True)(BATCH)[0]
    assert torch.equal(each[0, 0], (BATCH[0, 2] - 3) / 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pixels.IMAGENET()(BATCH)[0].dtype == torch.float32

"""The small convolutional network of the vMF paper for MNIST and Fashion-MNIST."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from toolkit.backbones.images import check_images, in_float32


class SmallCNN(nn.Module):
    """Two convolutions and two linear layers (vMF paper, D.1): (B, in_dim, image_size, image_size)
    -> (B, dim) raw embeddings. 97,419 parameters at dim 3.

    5x5 convolutions of 6 and of 16 filters, each with batch norm, ReLU and 2x2 max pooling; 120
    hidden units with batch norm and ReLU; a linear layer. Xavier uniform weights, biases zero.
    Layers have the places of google-research/vmf_embeddings, archs/n_digit_mnist_arch.py; its last
    one, over the classes, is the loss's. ValueError for images of another shape.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"
    left_out: tuple[str, ...] = ("encoder.13.",)

    def __init__(self, in_dim: int, *, dim: int = 3, image_size: int = 28):
        super().__init__()
        self.in_dim, self.dim, self.image_size = in_dim, dim, image_size
        convolutions = [
            nn.Conv2d(in_dim, 6, 5, padding=2),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        convolutions += [
            nn.Conv2d(6, 16, 5, padding=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        hidden = [
            nn.Flatten(),
            nn.Linear(16 * (image_size // 4) ** 2, 120),
            nn.BatchNorm1d(120),
            nn.ReLU(),
        ]
        self.encoder = nn.Sequential(*convolutions, *hidden, nn.Linear(120, dim))
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """images (B, in_dim, image_size, image_size) -> (B, dim) raw embeddings; lengths is
        ignored.
        """
        check_images(images, "SmallCNN", self.in_dim, self.image_size)
        return in_float32(self.encoder[-1], torch.as_tensor(self.encoder[:-1](images)))

"""The small convolutional network of the vMF paper for MNIST and Fashion-MNIST."""

import torch
from torch import Tensor, nn

from likeness.toolkit.backbones.images import check_images, in_float32


class SmallCNN(nn.Module):
    """Two convolutions and two linear layers (vMF paper, D.1), which give raw embeddings (B, dim).

    5x5 convolutions of 6 and of 16 filters are each followed by batch norm, ReLU and 2x2 max
    pooling; then come 120 hidden units with batch norm and ReLU, and a linear layer. Weights are
    Xavier uniform, biases zero. It has 97,419 parameters at dim 3. Layers have the places of
    google-research/vmf_embeddings, archs/n_digit_mnist_arch.py; its last layer, over the classes,
    belongs to the loss here.

    Args:
        in_dim: The number of channels of the images (B, in_dim, image_size, image_size).
        dim: The size of the embeddings.
        image_size: The edge of the images in pixels.

    Raises:
        LikenessError: The images have another shape.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"
    left_out: tuple[str, ...] = ("encoder.13.",)

    def __init__(self, in_dim: int, *, dim: int = 3, image_size: int = 28):
        super().__init__()
        self.in_dim, self.dim, self.image_size = in_dim, dim, image_size
        first = (nn.Conv2d(in_dim, 6, 5, padding=2), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(6, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        linear = nn.Linear(16 * (image_size // 4) ** 2, 120)
        hidden = (nn.Flatten(), linear, nn.BatchNorm1d(120), nn.ReLU())
        self.encoder = nn.Sequential(*first, *second, *hidden, nn.Linear(120, dim))
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of square images; `lengths` is ignored."""
        check_images(images, "SmallCNN", self.in_dim, self.image_size)
        return in_float32(self.encoder[-1], torch.as_tensor(self.encoder[:-1](images)))

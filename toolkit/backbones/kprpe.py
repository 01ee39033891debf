"""KP-RPE: a vision transformer for faces whose attention knows where the keypoints are."""

import math

import torch
from torch import Tensor, nn

from likeness.toolkit.backbones._images import check_images, start_from
from likeness.toolkit.backbones.vit import FaceViT

# Where crops that are aligned to the template of ArcFace have the left and right eye, the nose and
# the corners of the mouth: pixels (x, y) of 112 x 112.
TEMPLATE = (
    (38.2946, 51.6963),
    (73.5318, 51.5014),
    (56.0252, 71.7366),
    (41.5493, 92.3655),
    (70.7299, 92.2041),
)
_PATCH = 8  # the edge of a patch in pixels
_SIDE = 3  # offsets of patches along one side fall into the buckets -3 .. 3


class KPRPEViT(FaceViT):
    """ViT with keypoint relative position encoding, which gives raw embeddings (B, dim).

    It is a FaceViT whose attention has a bias. The bias of two patches depends on the offset
    between them, and on where the first one lies relative to five keypoints of the face. Source:
    Kim et al. 2024, "KeyPoint Relative Position Encoding for Face Recognition", CVPR 2024;
    parameter names are those of mk-minchul/CVLface, models/vit_kprpe, without "net." in front.

    In the release, an aligner network predicts the keypoints of every crop. Here they are an
    optional input, whose default are the five points of the template: faces that were aligned to
    the template by detected landmarks have their keypoints there.

    Args:
        in_dim: The number of channels of the aligned faces (B, in_dim, image_size, image_size).
        dim: The size of the embeddings.
        width, depth, heads, mlp_ratio: The size of a token, the number of blocks and of attention
            heads, and how much wider the hidden layer of a block is. 512, 24, 16 and 3 are the
            release's base, 512, 12, 8 and 5 its small network.
        image_size: The edge of the images in pixels.
        weights: A local file to start from.

    Raises:
        LikenessError: The images have another shape, or the file does not fit.
    """

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 512,
        width: int = 512,
        depth: int = 24,
        heads: int = 16,
        mlp_ratio: float = 3.0,
        image_size: int = 112,
        weights: str = "",
    ):
        super().__init__(
            in_dim,
            dim=dim,
            width=width,
            depth=depth,
            heads=heads,
            patch=_PATCH,
            image_size=image_size,
            masked=0.0,
            mlp_ratio=mlp_ratio,
        )
        self.heads, self.side = heads, image_size // _PATCH
        self.num_buckets = (2 * _SIDE + 1) ** 2
        self.keypoint_linear = nn.Linear(2 * len(TEMPLATE), self.num_buckets * heads * depth)
        # So training starts without a bias, as in the release.
        nn.init.zeros_(self.keypoint_linear.weight)
        nn.init.zeros_(self.keypoint_linear.bias)
        self.register_buffer("buckets", offset_buckets(self.side), persistent=False)
        places = [(x / 112, y / 112) for x, y in TEMPLATE]
        self.register_buffer("template", torch.tensor([places]), persistent=False)
        start_from(self, weights)

    def forward(
        self, images: Tensor, lengths: Tensor | None = None, keypoints: Tensor | None = None
    ) -> Tensor:
        """Return the raw embeddings (B, dim) of aligned faces.

        Args:
            images: (B, in_dim, image_size, image_size).
            lengths: Ignored.
            keypoints: (B, 5, 2), the places (x, y) of the left and right eye, the nose and the
                corners of the mouth, from 0 (the left or upper edge) to 1; or None for those of the
                template.
        """
        check_images(images, "KPRPEViT", self.in_dim, self.image_size)
        if keypoints is None:
            keypoints = self.get_buffer("template")
        return self.embed(images, self._biases(keypoints))

    def _biases(self, keypoints: Tensor) -> tuple[Tensor, ...]:
        """Return the bias of every block, (B, heads, N, N), of keypoints (B, 5, 2)."""
        centres = (torch.arange(self.side, device=keypoints.device) + 0.5) / self.side
        rows, columns = torch.meshgrid(centres, centres, indexing="ij")
        patches = torch.stack([columns, rows], dim=2).flatten(0, 1)  # (N, 2), as (x, y)
        relative = patches[None, :, None] - keypoints[:, None]  # (B, N, 5, 2)
        weight = self.keypoint_linear.weight
        encoded = self.keypoint_linear(relative.flatten(2).to(weight.dtype))
        # (B, depth, heads, N, buckets)
        encoded = encoded.unflatten(2, (-1, self.heads, self.num_buckets)).permute(0, 2, 3, 1, 4)
        buckets = self.get_buffer("buckets").expand(*encoded.shape[:3], -1, -1)
        return tuple(encoded.gather(4, buckets).unbind(1))


def offset_buckets(side: int) -> Tensor:
    """Return the bucket (N, N) of every two of N = side x side patches, row by row.

    The bucket is that of the product method of iRPE (Wu et al. 2021, Eq 18) at ratio 1.9, which the
    release uses: seven classes of offsets along the rows times seven along the columns.
    """
    classes = {offset: _offset_class(offset) + _SIDE for offset in range(1 - side, side)}
    places = [divmod(number, side) for number in range(side**2)]
    return torch.tensor(
        [
            [
                classes[row - other_row] * (2 * _SIDE + 1) + classes[column - other_column]
                for other_row, other_column in places
            ]
            for row, column in places
        ]
    )


def _offset_class(offset: int, ratio: float = 1.9) -> int:
    """Return the class of an offset in patches, -3 to 3: near ones their own, far ones shared."""
    near, most, far = ratio, 2 * ratio, 8 * ratio
    size = abs(offset)
    if size > near:
        beyond = math.log(size / near) / math.log(far / near) * (most - near)
        size = int(min(round(near + beyond), most))
    return size if offset >= 0 else -size

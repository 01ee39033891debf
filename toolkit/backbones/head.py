"""A small network over embeddings: one linear layer, or one hidden layer with a residual.

It adapts the embeddings of a large network, which stays as it is, to the subjects or instances of
one domain. Kordopatis-Zilos et al., "ILIAS: Instance-Level Image retrieval At Scale", CVPR 2025,
put linear layers on foundation models in this way.
"""

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError


def check_embeddings(x: Tensor, name: str, in_dim: int) -> None:
    """Refuse what is not a batch of embeddings (B, in_dim).

    Args:
        x: What a network was given.
        name: What the error calls the network.
        in_dim: The size of the embeddings that it takes.

    Raises:
        LikenessError: The shape is another one.
    """
    if x.ndim != 2 or x.shape[1] != in_dim:
        raise LikenessError(
            f"{name}: the input has shape {tuple(x.shape)}; it takes embeddings (B, {in_dim}): "
            "give it those of the model that it was made for"
        )


class Head(nn.Module):
    """Takes embeddings (B, in_dim) and gives embeddings (B, dim).

    Without a hidden layer it gives W x + b. With one it gives P x + V relu(U x + c), where P is the
    identity, or a linear layer where the sizes differ or there is a gain.

    Where the sizes agree, a new head gives back what it takes: training starts from the embeddings
    as they are. Otherwise it starts from a projection with orthogonal rows, which keeps distances
    as far as the new size can. With a gain it starts from a multiple of either.

    Args:
        in_dim: The size of the embeddings that it takes.
        dim: The size of those that it gives; 0 for the same.
        hidden: The size of the hidden layer; 0 for none.
        gain: By what the embeddings are multiplied at the start, for losses that see their norms.

    Example:
        >>> import torch
        >>> x = torch.tensor([[3.0, 4.0]])
        >>> Head(2)(x).tolist(), Head(2, hidden=8)(x).tolist(), Head(2, dim=1)(x).shape
        ([[3.0, 4.0]], [[3.0, 4.0]], torch.Size([1, 1]))
    """

    takes = "embeddings"
    pads_exactly = False

    def __init__(self, in_dim: int, *, dim: int = 0, hidden: int = 0, gain: float = 1.0):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim or in_dim
        same = self.dim == in_dim
        self.linear: nn.Module = nn.Identity()
        if not (hidden and same and gain == 1):
            linear = nn.Linear(in_dim, self.dim, bias=not hidden)
            if same:
                nn.init.eye_(linear.weight)
            else:
                nn.init.orthogonal_(linear.weight)
            with torch.no_grad():
                linear.weight.mul_(gain)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)
            self.linear = linear
        self.hidden: nn.Sequential | None = None
        if hidden:
            last = nn.Linear(hidden, self.dim)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.hidden = nn.Sequential(nn.Linear(in_dim, hidden), nn.ReLU(), last)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim).

        Args:
            x: Embeddings (B, in_dim).
            lengths: Not used: nothing of an embedding is padded.

        Raises:
            LikenessError: The embeddings have another size.
        """
        check_embeddings(x, "Head", self.in_dim)
        z: Tensor = self.linear(x)
        return z if self.hidden is None else z + self.hidden(x)

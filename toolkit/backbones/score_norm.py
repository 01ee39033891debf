"""Score normalisation as a part of the embedding, so that no cohort is needed when it is used.

Some embeddings are similar to many other subjects, and their scores are high without a reason.
Score normalisation divides the scores of an embedding by how much its scores against a cohort, a
set of other subjects, spread (eval/scoring/normalization.py). With the whole cohort this spread is
a quadratic form of the embedding, so that the division can be a part of the network. Dehak et al.,
"Cosine Similarity Scoring without Score Normalization Techniques", Odyssey 2010, did this with the
diagonal of the form.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from likeness.eval.errors import LikenessError
from likeness.toolkit.backbones.head import check_embeddings


class ScoreNorm(nn.Module):
    """Takes embeddings (B, in_dim), and gives embeddings whose dot product is a normalised score.

    With e = (x - m) / |x - m| and sigma(e) = sqrt(e' C e) it gives e / sqrt(sigma(e)), so that the
    dot product of two is cos / sqrt(sigma(e1) sigma(e2)). Here m is the mean of the cohort's
    embeddings, and C is the second moment of its subjects' mean unit vectors: sigma(e) is the root
    mean square of the scores of e against the cohort.

    Symmetric normalisation (S-norm) divides the score by the spread of either side, and takes the
    mean of the two quotients. Here it is their geometric mean. S-norm also subtracts the cohort's
    mean score from each side, which is left out here: it is near 0 after centring.

    `estimate` learns both constants from the training data. The mean is that of all embeddings; in
    the moment each subject counts once. They hold no embedding of any subject.

    Args:
        in_dim: The size of the embeddings that it takes and gives.
        floor: The least sigma(e), as a share of the root mean square of sigma over all directions.
            So an embedding that resembles nobody in a small cohort has finite scores.

    Example:
        >>> cohort = torch.tensor([[4.0, 0.0], [-4.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        >>> head = ScoreNorm(2)
        >>> head.estimate([(cohort, None, torch.tensor([0, 1, 2, 3]))])
        >>> a, b = head(torch.tensor([[3.0, 0.0], [1.0, 1.0]]))
        >>> f"cosine {0.5**0.5:.3f}, spread {0.5**0.5:.3f}, normalised {a @ b:.3f}"
        'cosine 0.707, spread 0.707, normalised 1.000'
    """

    takes = "embeddings"
    pads_exactly = False
    mean: Tensor  # (in_dim,)
    moment: Tensor  # (in_dim, in_dim)

    def __init__(self, in_dim: int, *, floor: float = 0.1):
        super().__init__()
        self.in_dim = self.dim = in_dim
        self.floor = floor
        self.register_buffer("mean", torch.zeros(in_dim))
        # torch.eye imports torch's compiler, a second's work, where models are restored
        self.register_buffer("moment", torch.zeros(in_dim, in_dim).fill_diagonal_(1 / in_dim))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the embeddings (B, dim); that of an embedding at the mean is 0.

        Args:
            x: Embeddings (B, in_dim).
            lengths: Not used: nothing of an embedding is padded.

        Raises:
            LikenessError: The embeddings have another size.
        """
        check_embeddings(x, "ScoreNorm", self.in_dim)
        # Without autocast, which would round the embeddings that training and scoring compare.
        with torch.autocast(x.device.type, enabled=False):
            unit = normalize(x.float() - self.mean)
            variance = ((unit @ self.moment) * unit).sum(dim=1, keepdim=True)
        least = self.floor**2 * self.moment.diagonal().mean()
        return unit / variance.clamp(min=least).sqrt().sqrt()

    @torch.no_grad()
    def estimate(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Learn the mean and the moment from (embeddings, None, labels); a label is a subject.

        An embedding that comes twice counts twice.

        Raises:
            LikenessError: All embeddings are alike, which says nothing of a spread.
        """
        rows, labels = zip(*((x, y) for x, _, y in batches), strict=True)
        x, y = torch.cat(rows).double(), torch.unique(torch.cat(labels), return_inverse=True)[1]
        count = torch.bincount(y).double()[:, None]
        mean = x.mean(dim=0)
        apart = x - mean
        # What rounding leaves of equal embeddings would have a direction.
        some = apart.norm(dim=1) > 1e-9 * x.norm(dim=1)
        unit = normalize(apart) * some[:, None]
        subjects = torch.zeros_like(unit[: len(count)]).index_add_(0, y, unit) / count
        moment = subjects.T @ subjects / len(subjects)
        if not moment.diagonal().sum() > 0:
            raise LikenessError(
                f"ScoreNorm: the embeddings of all {len(subjects)} subjects are alike, so nothing "
                "can be normalised by them; give those of different subjects"
            )
        self.mean.copy_(mean)
        self.moment.copy_(moment)

"""Losses on von Mises-Fisher (vMF) embeddings.

A raw embedding z stands for the distribution vMF(mu = z/|z|, kappa = |z|), so that its norm says
how certain it is.
"""

from math import log, sqrt
from typing import Any, Literal

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.eval.metrics import von_mises_fisher
from likeness.toolkit.losses.classes import class_logsumexp, class_rows, is_spread
from likeness.toolkit.losses.common import checked, normal, positive, proxies, share
from likeness.toolkit.losses.contract import Rates
from likeness.toolkit.losses.softmax import tau_groups
from likeness.toolkit.vmf.bound import bound_logits, expected_logsumexp
from likeness.toolkit.vmf.distribution import Method, relative_log_c, resultant_ratio, root
from likeness.toolkit.vmf.rows import full, unit
from likeness.toolkit.vmf.sampling import cosines, generator_of, move_on, ranks, sample


@checked
class VMF(nn.Module):
    """The vMF loss: a cosine softmax over distributions. Scott et al. 2021, Eq 8 and 13.

    Embeddings and class vectors are vMF-distributed and marginalised: mean_i{ mean_s
    logsumexp_j[lc(|w_j|) - lc(|w_j + beta z_s|)] - beta A(kappa_i) A(|w_y|) mu_i.mu_y }, with draws
    z_s ~ vMF(mu_i, kappa_i), kappa_i = |alpha z_i|, lc = log C_n, and beta = exp(tau), which is
    learned. It bounds the expected cross-entropy from above. Nothing is normalised: norms are
    concentrations.

    Draws depend on the buffer `noise`, which a backward pass moves on: a repeated evaluation
    repeats the value, and a resumed run continues the same noise.

    Args:
        num_samples: Draws of every embedding.
        resultant: lambda of Eq 14-19, in (0, 1): the mean resultant length aimed at on the start,
            from which the proxies' norm follows (.4 closed sets, .7 open sets). `estimate` sets
            alpha so that embeddings start there too.
        tau: Where the logarithm of the scale starts.
        tau_lr: The rate at which it learns.
        method: "debye" takes the exact A and lc, "bounds" those of Eq 10 and 12.
        noise: "shared" gives all rows the same num_samples tangent directions (and each its own
            cosines). Every row's draws are then exactly vMF, rows are merely not independent of
            each other, and the (S B, dim) x (dim, C) product shrinks to (B + S, dim) x (dim, C).
            "independent", and always below 16 dimensions: as the release.
        alpha_from: What `estimate` measures: "norm" is E|z|, Eq 15; "absolute" is sqrt(n) E|z_i|,
            Eq 16 and the release.

    Raises:
        LikenessError: dim is below 2, or a setting is outside its range.
    """

    spreads_classes = True

    alpha: Tensor
    noise: Tensor

    # many parameters: each is a setting of the paper or of its release
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        num_samples: int = 10,
        resultant: float = 0.4,
        tau: float = 0.0,
        tau_lr: float = 1e-3,
        method: Literal["debye", "bounds"] = "debye",
        noise: Literal["shared", "independent"] = "shared",
        alpha_from: Literal["norm", "absolute"] = "norm",
    ):
        super().__init__()
        share(self, resultant=resultant)
        positive(self, resultant=resultant, num_samples=num_samples)
        self.dim, self.num_classes = dim, num_classes
        self.num_samples, self.tau_lr = num_samples, tau_lr
        self.method: Method = method
        self.sharing, self.alpha_from = noise, alpha_from
        self.concentration = resultant * (dim - 1) / (1 - resultant**2)  # Eq 14
        self.proxies = proxies(num_classes, dim, normal(self.concentration / sqrt(dim)))  # Eq 19
        self.tau = nn.Parameter(torch.tensor(float(tau)))
        self.register_buffer("alpha", torch.ones(()))
        self.register_buffer("noise", torch.randint(2**62, ()))

    @torch.no_grad()
    def estimate(self, embeddings: Tensor) -> float:
        """Set alpha so that the mean of |alpha z| is Eq 14's concentration.

        The training loop calls it before the first step. alpha stays fixed from then on and is
        saved with the weights.

        Args:
            embeddings: (N, dim), of the training set.

        Returns:
            alpha.

        Raises:
            LikenessError: The embeddings are not finite, or all 0.
        """
        embeddings = full(embeddings)
        size = (
            embeddings.norm(dim=1).mean()
            if self.alpha_from == "norm"
            else sqrt(self.dim) * embeddings.abs().mean()
        )
        if not bool(torch.isfinite(size) & (size > 0)):
            raise LikenessError(
                "VMF.estimate: embeddings must be finite and not all 0, but their mean size is "
                f"{float(size)}"
            )
        self.alpha.copy_(self.concentration / size)
        return float(self.alpha)

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): beta E[w_j].E[z] = beta A(|w_j|) A(kappa) cos, without draws.

        The paper predicts by `posterior`.
        """
        nu = z * self.alpha.to(z.dtype)
        scaled = self.tau.to(nu.dtype).exp() * self._mean(nu)
        return scaled @ self._mean(self.proxies.to(nu.dtype)).T

    @torch.no_grad()
    def posterior(
        self, z: Tensor, *, num_samples: int | None = None, generator: torch.Generator | None = None
    ) -> Tensor:
        """Class probabilities by draws. Scott et al. 2021, Sec. 2.3.

        The mean over draws of softmax_j(beta w_j.z). z and the class vectors are drawn anew for
        every row.

        Args:
            z: Raw embeddings (B, dim).
            num_samples: Draws; None takes the loss's own number.
            generator: Of random numbers, on z's device; None takes torch's default.

        Returns:
            (B, C), without gradient.
        """
        nu, w = z * self.alpha.to(z.dtype), self.proxies.to(z.dtype)
        num, beta = num_samples or self.num_samples, self.tau.to(nu.dtype).exp()
        share = torch.zeros(len(nu), len(w), dtype=nu.dtype, device=nu.device)
        size = max(1, 2**22 // w.numel())  # rows at a time, each of which needs (C, D) numbers
        for rows, total in zip(torch.split(nu, size), torch.split(share, size), strict=True):
            # Each row has its own draws: shared ones would not average out over a test set.
            for _ in range(num):
                drawn = sample(unit(rows), rows.norm(dim=1), 1, generator=generator)[0]
                classes = sample(unit(w), w.norm(dim=1), len(rows), generator=generator)
                total += (
                    torch.softmax(beta * torch.einsum("bd,bcd->bc", drawn, classes), dim=1) / num
                )
        return share

    def _mean(self, nu: Tensor) -> Tensor:
        """The mean A(|nu|) mu of vMFs with natural parameters nu (N, D)."""
        return resultant_ratio(nu.square().sum(1, keepdim=True), self.dim, method=self.method) * nu

    def forward(
        self, z: Tensor, y: Tensor, z_key: Tensor | None = None, *, samples: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch.

        Args:
            z: Raw embeddings (B, dim).
            y: Labels (B,).
            z_key: Not used.
            samples: Unit vectors (S, B, dim) to take instead of draws.

        Returns:
            A scalar.
        """
        nu, w = z * self.alpha.to(z.dtype), self.proxies.to(z.dtype)
        beta = self.tau.to(z.dtype).exp()
        draws: tuple[Tensor, Tensor, Tensor] = (
            self._draws(nu) if samples is None else self._given(samples.to(z.dtype))
        )
        if is_spread():  # not blockwise: (S, B, c) is made
            logits = bound_logits(*draws, w, beta, self.dim, self.method)
            bound, own_w = class_logsumexp(logits.flatten(0, 1)).mean(), class_rows(w, y)
        else:
            bound, own_w = expected_logsumexp(*draws, w, y, beta, self.dim, self.method)
        own = (self._mean(nu) * self._mean(own_w)).sum(1)
        return move_on(bound - beta * own.mean(), self.noise)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _draws(self, nu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """All draws as along_si left_i + across_si left_{B+s}.

        Returns:
            left (B + S, D), along and across (S, B).
        """
        generator = generator_of(self.noise, nu.device)
        order = ranks(nu)
        mu, kappa = unit(nu), root(nu.square().sum(1))
        # In few dimensions a shared direction can fall on mu, and the product is small anyway.
        inverse, num = order.argsort(), self.num_samples
        if self.sharing == "independent" or self.dim < 16:
            drawn = sample(mu[inverse], kappa[inverse], num, generator=generator)
            return self._given(drawn[:, order])
        first = torch.eye(1, self.dim, dtype=mu.dtype, device=mu.device)
        mu = torch.where(kappa[:, None] > 0, mu, first)
        single: Any = {"dtype": torch.float32, "device": nu.device}
        tangents = torch.randn(num, self.dim, generator=generator, **single).to(nu.dtype)
        drawn_cosines = cosines(kappa[inverse], self.dim, num, generator=generator)
        cosine, sine = (x[:, order].to(nu.dtype) for x in drawn_cosines)
        toward = tangents @ mu.T
        length = tangents.square().sum(1, keepdim=True) - toward.square()
        across = sine / length.clamp(min=1e-12).sqrt()
        return torch.cat([mu, tangents]), cosine - across * toward, across

    def _given(self, samples: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same of samples (S, B, D) that are given."""
        rows = samples.flatten(0, 1)
        return (
            torch.cat([rows, rows.new_zeros(1, self.dim)]),
            rows.new_ones(1, len(rows)),
            rows.new_zeros(1, len(rows)),
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """Proxies as usual; tau at its own rate, without momentum and decay, as in the release."""
        return tau_groups(self, self.tau, self.tau_lr, optim)


@checked
class SCF(nn.Module):
    """Spherical confidence: how certain an embedding is, given class vectors. Li et al. 2021.

    -log density of the class vector, on the sphere of radius r, under vMF(mu, kappa): -lc(kappa) -
    kappa cos(mu, w_y) + n log r. Another loss has made the class vectors; assign them to `proxies`.
    Directions are normalised.

    The paper freezes the network and trains a head for kappa. A network that is trained whole, as
    with concentration="norm", drifts in its directions all the same: no gradient asks for it, but
    kappa and the direction come from the same weights, and what changes one changes the other,
    unchecked by this loss. Freeze all but a head with concentration="output" to keep directions, or
    join it (Joint) with the loss that made them.

    Args:
        r: Radius of the sphere, positive.
        concentration: "norm": kappa = |z|. "output": kappa = exp(z[:, -1]), a head's own output,
            and the direction is the other columns (proxies (C, dim - 1)).
    """

    spreads_classes = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        r: float = 64.0,
        concentration: Literal["norm", "output"] = "norm",
    ):
        super().__init__()
        self.dim, self.num_classes = dim, num_classes
        self.r, self.concentration = r, concentration
        self.directions = dim if concentration == "norm" else dim - 1
        self.proxies = proxies(num_classes, self.directions)

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): kappa cos(mu, w_j), the log densities up to a common term."""
        mu, kappa = self._split(z)
        return kappa[:, None] * mu @ unit(self.proxies).to(mu.dtype).T

    def _split(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings (B, dim) -> unit directions (B, n), concentrations (B,)."""
        if self.concentration == "norm":
            return unit(z), root(z.square().sum(1))
        return unit(z[:, :-1]), z[:, -1].clamp(max=30.0).exp()

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        mu, kappa = self._split(z)
        # as in the paper, no gradient reaches directions and proxies
        cosine = (mu * unit(class_rows(self.proxies, y)).to(mu.dtype)).sum(1).detach()
        n = self.directions
        constant = n * log(self.r) - von_mises_fisher.log_normalizer_at_zero(n)
        return (-relative_log_c(kappa.square(), n) - kappa * cosine).mean() + constant

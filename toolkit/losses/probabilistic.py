"""Probabilistic proxies, and the sum of two losses that share their proxies."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses import contract
from likeness.toolkit.losses.classes import cross_entropy, is_spread
from likeness.toolkit.losses.common import checked, positive
from likeness.toolkit.losses.proxy import ProxyAnchor
from likeness.toolkit.vmf import distances
from likeness.toolkit.vmf.bound import el_nivmf_cross_entropy
from likeness.toolkit.vmf.distribution import Method, Normalizer, root
from likeness.toolkit.vmf.rows import unit
from likeness.toolkit.vmf.sampling import generator_of, move_on, ranks, sample

Distance = Literal["el_nivmf", "nivmf", "el_vmf", "b_vmf", "kl_vmf", "l2", "cos"]
CONCENTRATIONS = {
    "el_nivmf": "axis",
    "nivmf": "axis",
    "el_vmf": "proxy",
    "b_vmf": "proxy",
    "kl_vmf": "proxy",
    "l2": "proxy",
    "cos": "none",
}
LEAST = 1e-4  # the temperature's floor


@checked
class ProbabilisticNCA(nn.Module):
    """NCA++ over distances between distributions. Kirchhof et al. 2022, Eq 2 and 6.

    Cross-entropy of -d(proxy_c, z)/t, where d is a distance between the embedding's distribution
    vMF(z/|z|, |z|) and the proxies'. Draws repeat until a backward pass: see VMF.

    A proxy has a direction and concentrations `kappas`, (C, D) for nivMF and (C, 1) for vMF,
    floored at .1. Its direction is that of its row of `proxies`, which starts with the norm
    `concentration` as in the release. The norm is not used, but the longer a row, the smaller the
    angle of a step at a given rate. The paper tried t in {1, 1/32, 1/256}, concentration in {10,
    50, 200} and 5 to 20 samples.

    Args:
        distance: "el_nivmf": -log mean_s rho_c(z_s) over draws. "nivmf": -log rho_c(z/|z|).
            "el_vmf", "b_vmf", "kl_vmf": expected likelihood, Bhattacharyya and KL(z || proxy) of
            two vMFs. "l2": |nu_c - nu_z|^2. "cos": -cos. rho_c is a nivMF; the others' proxies are
            vMFs.
        temperature: t, or where it starts, positive.
        learn_temperature: Learn t.
        temperature_inside: True takes log mean_s rho^(1/t), as Algorithm 1 and the release do;
            False is the paper's Eq 6.
        num_samples: Draws of every embedding.
        concentration: Where concentrations start, at least .1.
        normalizer, method: See likeness.toolkit.vmf.distribution.log_density_nivmf.
        kappa_lr_scale, temperature_lr_scale: Rates relative to the base rate.

    Raises:
        LikenessError: A setting is outside its range.
    """

    spreads_classes = True

    noise: Tensor

    # many parameters: each is a setting of the paper or of its release
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        distance: Distance = "el_nivmf",
        temperature: float = 1.0,
        learn_temperature: bool = True,
        temperature_inside: bool = True,
        num_samples: int = 5,
        concentration: float = 10.0,
        normalizer: Normalizer = "paper",
        method: Method = "debye",
        kappa_lr_scale: float = 1.0,
        temperature_lr_scale: float = 1.0,
    ):
        super().__init__()
        positive(self, temperature=temperature, num_samples=num_samples)
        self.dim, self.num_classes = dim, num_classes
        self.distance, self.num_samples = distance, num_samples
        self.temperature_inside = temperature_inside
        self.normalizer, self.method = normalizer, method
        self.kappa_lr_scale, self.temperature_lr_scale = kappa_lr_scale, temperature_lr_scale
        self.proxies = nn.Parameter(float(concentration) * unit(torch.randn(num_classes, dim)))
        width = {"axis": dim, "proxy": 1}.get(CONCENTRATIONS[distance])
        self.kappas = (
            nn.Parameter(torch.full((num_classes, width), float(concentration))) if width else None
        )
        self.temperature: nn.Parameter | float = float(temperature)
        if learn_temperature:
            self.temperature = nn.Parameter(torch.tensor(float(temperature)))
        self.register_buffer("noise", torch.randint(2**62, ()))

    def distances(self, z: Tensor, *, samples: Tensor | None = None) -> Tensor:
        """Distances to the proxies, up to a constant that all classes share.

        Args:
            z: Raw embeddings (B, dim).
            samples: Unit vectors (S, B, dim) to take instead of draws.

        Returns:
            (B, C).
        """
        mu = unit(self.proxies).to(z.dtype)
        if self.kappas is None:
            return distances.d_cos(z, mu)
        kappas = self.kappas.to(z.dtype).clamp(min=0.1)
        if self.distance == "el_nivmf":
            return distances.d_el_nivmf(
                mu,
                kappas,
                samples=self._draw(z) if samples is None else samples.to(z.dtype),
                temperature=self._temperature(z),
                temperature_inside=self.temperature_inside,
                normalizer=self.normalizer,
                method=self.method,
                relative=True,
            )
        if self.distance == "nivmf":
            return distances.d_nivmf(
                z, mu, kappas, normalizer=self.normalizer, method=self.method, relative=True
            )
        if self.distance == "el_vmf":
            return distances.d_el_vmf(z, kappas * mu, method=self.method, relative=True)
        if self.distance == "l2":
            return distances.d_l2(z, kappas * mu)
        of_vmfs = distances.d_b_vmf if self.distance == "b_vmf" else distances.d_kl_vmf
        return of_vmfs(z, kappas * mu, method=self.method)

    def logits(self, z: Tensor, *, samples: Tensor | None = None) -> Tensor:
        """(B, dim) -> (B, C): -d/t; samples as in `distances`."""
        distance = self.distances(z, samples=samples)
        return -distance / self._temperature(distance)

    def _temperature(self, like: Tensor) -> Tensor | float:
        """t, floored, as a number or of the type of `like`."""
        if isinstance(self.temperature, float):
            return self.temperature
        return self.temperature.clamp(min=LEAST).to(like.dtype)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _draw(self, z: Tensor) -> Tensor:
        """Draws (S, B, D) of embeddings (B, D)."""
        order = ranks(z)
        inverse = order.argsort()
        mu, kappa = unit(z)[inverse], root(z.square().sum(1))[inverse]
        generator = generator_of(self.noise, z.device)
        return sample(mu, kappa, self.num_samples, generator=generator)[:, order]

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
        if not isinstance(self.temperature, float):
            # Below the floor it would have no gradient and never return, so the parameter itself is
            # clamped; .data keeps valid what an earlier forward pass saved for its gradient.
            self.temperature.data.clamp_(min=LEAST)
        if self.distance == "el_nivmf" and self.kappas is not None and not is_spread():
            # `logits` would make (S, B, C) several times over; this sum never does.
            samples = self._draw(z) if samples is None else samples.to(z.dtype)
            mu, kappas = unit(self.proxies).to(z.dtype), self.kappas.to(z.dtype).clamp(min=0.1)
            loss = el_nivmf_cross_entropy(
                samples,
                y,
                mu,
                kappas,
                self._temperature(z),
                temperature_inside=self.temperature_inside,
                normalizer=self.normalizer,
                method=self.method,
            )
        else:
            loss = cross_entropy(self.logits(z, samples=samples), y)
        return move_on(loss, self.noise)

    def param_groups(self, optim: contract.Rates) -> list[dict[str, Any]]:
        """The proxies' rate for directions, own rates for the rest; no decay.

        As in the release. Decay along a row whose norm is not used would only shorten it, and where
        Adam adds it to the gradient, drown the part that turns the row.
        """
        groups = [contract.proxy_group(optim, self.proxies, decay=False)]
        for parameter, scale in (
            (self.kappas, self.kappa_lr_scale),
            (self.temperature, self.temperature_lr_scale),
        ):
            if isinstance(parameter, nn.Parameter):
                groups.append({"params": [parameter], "lr": optim.lr * scale, "weight_decay": 0.0})
        return groups


@checked
class Joint(nn.Module):
    """first + weight * second: two losses on the same embeddings. Kirchhof et al. 2022, Eq 7.

    The paper's PANC + EL-nivMF is ProbabilisticNCA + omega ProxyAnchor. logits and similarity are
    the first's. A part that estimates a constant of the training set (VMF), or that trains other
    features than the raw ones, is refused: embeddings are made for both.

    Args:
        first, second: Losses of this package, or functools.partial of one, called with (dim,
            num_classes).
        weight: omega: 3 (CUB, 128-D), 5 (CUB, 512-D), .3 (Cars, 128-D), .1 (Cars, 512-D).
        share: Where both have (C, D) proxies, both use the first's. False: each its own.

    Raises:
        LikenessError: A part is refused.
    """

    spreads_classes = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        first: Callable[[int, int], nn.Module] = ProbabilisticNCA,
        second: Callable[[int, int], nn.Module] = ProxyAnchor,
        weight: float = 3.0,
        share: bool = True,
    ):
        super().__init__()
        self.dim, self.num_classes, self.weight = dim, num_classes, weight
        self.first, self.second = first(dim, num_classes), second(dim, num_classes)
        for part in (self.first, self.second):
            if isinstance(part, contract.Estimated):
                raise LikenessError(
                    f"Joint: {type(part).__name__} estimates a constant of the training set, which "
                    "a part cannot; train it alone"
                )
            if (features := contract.features_of(part)) != "raw":
                raise LikenessError(
                    f"Joint: {type(part).__name__} has features={features!r}, but its parts share "
                    "the raw embeddings; pass features='raw'"
                )
        if (
            share
            and isinstance(self.first, contract.Classifier)
            and isinstance(self.second, contract.Classifier)
        ):
            self.second.proxies = self.first.proxies

    def at_step(self, step: int) -> None:
        """Prepare both parts for this step, counted from 0."""
        for part in (self.first, self.second):
            if isinstance(part, contract.Scheduled):
                part.at_step(step)

    @property
    def similarity(self) -> str:
        """The name by which likeness.eval.metrics.similarity scores these embeddings: the
        first part's.
        """
        return contract.similarity_trained_by(self.first)

    @property
    def proxies(self) -> Tensor:
        """The first part's class vectors (C, D)."""
        proxies: Tensor = self.first.proxies  # type: ignore[assignment]
        return proxies

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): the first part's."""
        logits: Tensor = self.first.logits(z)  # type: ignore[operator]
        return logits

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        first: Tensor = self.first(z, y, z_key)
        second: Tensor = self.second(z, y, z_key)
        return first + self.weight * second

    def param_groups(self, optim: contract.Rates) -> list[dict[str, Any]]:
        """The first part's groups and the second's; a shared parameter is in the first's."""
        seen: set[int] = set()
        groups: list[dict[str, Any]] = []
        for group in (
            group
            for part in (self.first, self.second)
            for group in contract.param_groups(part, optim)
        ):
            own = [parameter for parameter in group["params"] if id(parameter) not in seen]
            seen |= {id(parameter) for parameter in own}
            if own:
                groups.append({**group, "params": own})
        return groups

"""SimPLE and others against their formulas in loops, and what every loss promises."""

import copy
import inspect
import math
import typing
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses import contract
from likeness.toolkit.losses.common import turn_to_means
from likeness.toolkit.losses.graph import ProxyGML
from likeness.toolkit.losses.margin import ArcFace
from likeness.toolkit.losses.pair import SNRContrastive
from likeness.toolkit.losses.proxy import HUG
from likeness.toolkit.losses.simple import SimPLE, polarlike
from likeness.toolkit.training.memory import Bank
from likeness.toolkit.training.recipe import Optim
from likeness.toolkit.vmf.rows import unit
from tests.toolkit.losses.drawn import LOSSES, batch


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def simple_by_loops(
    z: Any, y: Any, keys: Any, key_labels: Any, own: Any, *, joint: bool = False, **settings: float
) -> float:
    """Eq 8, one pair at a time."""
    b_theta, r, alpha, b = (settings[name] for name in ("b_theta", "r", "alpha", "b"))
    positive, negative = [], []
    for i in range(len(z)):
        for j in range(len(keys)):
            if key_labels[j] < 0 or own[i] == j:
                continue
            lengths = np.linalg.norm(z[i]) * np.linalg.norm(keys[j])
            s = float(np.dot(z[i], keys[j]) - b_theta * lengths)
            if y[i] == key_labels[j]:
                positive.append(softplus(-(s + b) / r))
            else:
                negative.append(softplus(r * (s + b)))
    sums = alpha * sum(positive), (1 - alpha) * sum(negative)
    if joint:
        return sum(sums) / (len(positive) + len(negative))
    return sums[0] / max(len(positive), 1) + sums[1] / max(len(negative), 1)


@pytest.mark.parametrize("reduction", ["separate", "joint"])
@given(
    seed=st.integers(0, 100),
    b_theta=st.floats(0, 0.9),
    r=st.floats(0.5, 4),
    alpha=st.floats(0.01, 0.9),
    b=st.floats(-5, 2),
)
@settings(max_examples=15)
def test_simple_is_eq_8_over_the_batch(reduction, seed, b_theta, r, alpha, b):
    z, y = batch(seed)
    settings = {"b_theta": b_theta, "r": r, "alpha": alpha, "b": b}
    loss = SimPLE(5, reduction=reduction, **settings).double()
    with torch.no_grad():  # float64 exactly, not through the float32 of the constructor
        loss.b.fill_(b)
    rows, joint = z.numpy(), reduction == "joint"
    expected = simple_by_loops(rows, y, rows, y, range(len(y)), joint=joint, **settings)
    assert loss(z, y).item() == pytest.approx(expected, rel=1e-9)


@given(
    seed=st.integers(0, 100),
    scale=st.floats(0.5, 40),
    lengths=st.floats(0.01, 100),
    features=st.sampled_from(["raw", "polarlike"]),
)
@settings(max_examples=15, deadline=None)
def test_simple_of_cosines_is_eq_8_of_unit_rows(seed, scale, lengths, features):
    """SimPLE (cosine): scale * cos in place of the generalised product, whatever the lengths and
    b_theta; with r = 1, cross-entropy of the pairs.
    """
    z, y = batch(seed)
    made = polarlike(z) if features == "polarlike" else z
    rows = np.array([row / np.linalg.norm(row) for row in made.numpy()]) * math.sqrt(scale)
    settings = {"r": 2.0, "alpha": 0.2, "b": -1.5}
    cosine: Any = {"product": "cosine", "scale": scale, "features": features}
    loss = SimPLE(5, b_theta=0.7, **settings, **cosine).double()
    expected = simple_by_loops(rows, y, rows, y, range(len(y)), b_theta=0.0, **settings)
    assert loss(z, y).item() == pytest.approx(expected, rel=1e-9)
    if features == "raw":
        longer = (z * lengths).requires_grad_()
        value = loss(longer, y)
        assert value.item() == pytest.approx(expected, rel=1e-9)
        value.backward()
        assert longer.grad is not None
        # the length of an embedding says nothing
        radial = (longer.grad * longer.detach()).sum(dim=1)
        torch.testing.assert_close(radial, torch.zeros_like(radial), atol=1e-9, rtol=0)
    assert loss.similarity == "cosine"
    with pytest.raises(ValueError, match="no b_theta to learn"):
        SimPLE(5, product="cosine", learn_b_theta=True)


@pytest.mark.parametrize("product", ["generalised", "cosine"])
def test_simple_against_a_bank_that_fills_and_wraps(product: Any) -> None:
    cosine = product == "cosine"
    settings = {"b": -2.0, "r": 2.0, "alpha": 0.2}
    loss = SimPLE(5, product=product, scale=6.0, **settings).double()
    loss.bank = Bank(20, 5).double()
    for step in range(5):  # 40 keys through 20 slots: empty, part full, wrapped
        z, y = batch(step)
        z.requires_grad_()
        value = loss(z, y, z.detach() + 0.1)
        rows, keys = (
            math.sqrt(6.0) * nn.functional.normalize(vectors) if cosine else vectors
            for vectors in (z.detach(), loss.bank.keys)
        )
        own = [(8 * step + i) % 20 for i in range(8)]
        compared = rows.numpy(), y, keys.numpy(), loss.bank.labels, own
        expected = simple_by_loops(*compared, b_theta=0.0 if cosine else 0.3, **settings)
        assert value.item() == pytest.approx(expected, rel=1e-9)
        assert int((loss.bank.labels >= 0).sum()) == min(20, 8 * (step + 1))
    assert torch.autograd.gradcheck(lambda one: loss(one, y), (z,))


@pytest.mark.parametrize("start", [1.0, -1.0])
def test_a_learned_angular_bias_stays_a_cosine_and_can_return(start: float) -> None:
    """Where a step leaves it beyond -1 or 1, the next loss is that of the bound, with its gradient;
    what is written for scoring is never beyond.
    """
    z, y = batch()
    loss = SimPLE(5, b_theta=start, learn_b_theta=True).double()
    assert isinstance(loss.b_theta, nn.Parameter)
    with torch.no_grad():
        loss.b_theta.mul_(1.7)
    assert loss.similarity == f"simple:{start:g}"
    value, bound = loss(z, y), SimPLE(5, b_theta=start).double()(z, y)
    assert value.item() == pytest.approx(bound.item(), rel=1e-12)
    value.backward()
    assert loss.b_theta.grad is not None
    assert float(loss.b_theta.grad) != 0
    assert float(loss.b_theta.detach()) == start
    (loss(z, y) + loss(2 * z, y)).backward()  # two passes before one backward pass


def test_polarlike_separates_magnitude_and_direction() -> None:
    z, _ = batch()
    made = polarlike(z)
    torch.testing.assert_close(made.norm(dim=1), nn.functional.softplus(z[:, 0]))
    cosines = nn.functional.cosine_similarity(made, z[:, 1:])
    torch.testing.assert_close(cosines, torch.ones(8, dtype=torch.float64))
    loss = SimPLE(5, features="polarlike").double()
    expected = SimPLE(4).double()(made, torch.arange(8) % 4)
    assert float(loss(z, torch.arange(8) % 4)) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("wrap", ["monotone", "easy", "clamp", "none", "continuous"])
def test_arcface_is_its_formula_by_angles(wrap: Any) -> None:
    z, y = batch(size=12)
    loss = ArcFace(5, 4, margin=0.7, scale=3.0, wrap=wrap).double()
    with torch.no_grad():
        loss.proxies[0] = -z[0]  # one target angle at pi: beyond every wrap
    total = 0.0
    for i in range(12):
        rows = [row / np.linalg.norm(row) for row in loss.proxies.detach().numpy()]
        cosine = [float(np.dot(z[i].numpy() / np.linalg.norm(z[i]), row)) for row in rows]
        angle = math.acos(max(-1.0, min(1.0, cosine[int(y[i])])))
        c = cosine[int(y[i])]
        target = {
            "none": math.cos(angle + 0.7),
            "clamp": math.cos(min(angle + 0.7, math.pi)),
            "easy": math.cos(angle + 0.7) if c > 0 else c,
            "monotone": math.cos(angle + 0.7) if angle + 0.7 < math.pi else c - 0.7 * math.sin(0.7),
            "continuous": math.cos(angle + 0.7) if angle + 0.7 < math.pi else c - 1 + math.cos(0.7),
        }[wrap]
        logits = [3.0 * (target if j == int(y[i]) else cosine[j]) for j in range(4)]
        total += math.log(sum(math.exp(logit - logits[int(y[i])]) for logit in logits))
    # acos at pi loses half the digits
    assert loss(z, y).item() == pytest.approx(total / 12, rel=1e-7)


def test_arcface_gradient_is_the_loss_s_or_the_detached_one() -> None:
    z, y = batch()
    exact = ArcFace(5, 4, scale=4.0, wrap="none").double()
    assert torch.autograd.gradcheck(lambda x: exact(x, y), (z.requires_grad_(),))
    detached = ArcFace(5, 4, scale=4.0, wrap="none", grad="detached").double()
    detached.load_state_dict(exact.state_dict())
    assert float(detached(z, y)) == pytest.approx(float(exact(z, y)), rel=1e-12)
    ours = torch.autograd.grad(exact(z, y), z)[0]
    theirs = torch.autograd.grad(detached(z, y), z)[0]
    assert float((ours - theirs).norm() / ours.norm()) > 0.01


WRONG: dict[str, dict[str, tuple[Any, ...]]] = {  # loss -> setting -> values outside its range
    "AdaFace": {"momentum": (1.0,)},
    "Angular": {"alpha": (45.0,)},  # degrees
    "ArcFace": {"margin": (4.0,)},
    "BroadFace": {"queue_size": (0,)},
    "CircleSoftmax": {"scale": (0.0,)},
    "CosFace": {"scale": (0.0,), "b_theta": (1.01, -2.0, math.nan)},
    "CurricularFace": {"momentum": (1.0,)},
    "EasyPositive": {"temperature": (math.nan, math.inf)},
    "HUG": {"s": (0.0,)},
    "Hyperbolic": {"c": (0.0,)},
    "InterTopK": {"margin": (4.0,), "penalty": (-0.1,), "scale": (0.0,), "num_subcentres": (0,)},
    "MemVir": {"scale": (0.0, math.nan, math.inf), "num_steps": (0,), "batch_size": (0,)},
    "NormFace": {"scale": (-1.0,)},
    "NormSoft": {"temperature": (0.0,)},
    "PairBCE": {"scale": (math.nan, math.inf)},
    "ProbabilisticNCA": {"temperature": (0.0,)},
    "ProxyAnchor": {"scale": (0.0,)},
    "ProxyNCAPlusPlus": {"temperature": (0.0,)},
    "SimPLE": {"b_theta": (1.01, -2.0, math.nan)},
    "SoftTriple": {"gamma": (0.0,)},
    "Softmax": {"b_theta": (1.01, -2.0, math.nan)},
    "SphereFace2": {"alpha": (1.0,)},
    "SubCenterArcFace": {"num_subcentres": (0,)},
    "VMF": {"resultant": (1.0,)},
}


@pytest.mark.parametrize("make", LOSSES, ids=lambda found: found.__name__)
class TestContract:
    def test_a_setting_outside_its_range_is_refused_by_its_name(self, make: Any) -> None:
        for name, values in WRONG.get(make.__name__, {}).items():
            for value in values:
                with pytest.raises(ValueError, match=f"{make.__name__}: .*{name}={value}"):
                    make(5, 4, **{name: value})

    def test_an_empty_batch_is_refused(self, make: Any) -> None:
        with pytest.raises(ValueError, match="B at least 1"):
            make(5, 4)(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))

    def test_row_order_and_batch_duplication_change_nothing(self, make: Any) -> None:
        z, y = batch()
        loss = make(5, 4).double()
        order = torch.randperm(8, generator=torch.Generator().manual_seed(1))
        assert loss(z, y).item() == pytest.approx(float(loss(z[order], y[order])), rel=1e-12)

    @pytest.mark.parametrize("with_keys", [False, True])
    def test_finite_gradients_on_hard_inputs(self, make: Any, with_keys: bool) -> None:
        z = torch.randn(10, 5)
        # duplicates of the same and of another class, antipodes
        z[1], z[4], z[8], z[5] = z[0], z[0], z[0], -z[0]
        z[2], z[3], z[6] = 0.0, 1e6 * z[3], 1e-9 * z[6]
        for y in (torch.arange(10) % 4, torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 3, 3])):
            x, loss = z.clone().requires_grad_(), make(5, 4)
            value = loss(x, y, z if with_keys else None)
            grads = torch.autograd.grad(value, [x, *loss.parameters()], allow_unused=True)
            assert bool(torch.isfinite(value))
            assert all(grad is None or bool(torch.isfinite(grad).all()) for grad in grads)

    @pytest.mark.parametrize("labels", [[0], [1, 1], [0, 1], [3, 3, 3, 3], [0, 2, 0, 2, 2, 1, 0]])
    def test_any_labels_give_finite_numbers(self, make: Any, labels: list[int]) -> None:
        """One class, lone items, equal rows, and rows of any length."""
        z = torch.randn(len(labels), 5)
        for equal in (False, True):
            z[::2] = z[0].clone() if equal else z[::2]
            for size in (1.0, 1e6):
                loss, x = make(5, 4), (size * z).requires_grad_()
                value = loss(x, torch.tensor(labels)) + loss(x, torch.tensor(labels))
                grads = torch.autograd.grad(value, [x, *loss.parameters()], allow_unused=True)
                assert bool(torch.isfinite(value))
                assert all(grad is None or bool(torch.isfinite(grad).all()) for grad in grads)

    @pytest.mark.parametrize("zero", [slice(2, 5), slice(None)], ids=["three rows", "all rows"])
    @pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
    def test_zero_rows_in_half_precision_get_gradients_of_the_usual_size(self, make, half, zero):
        """A direction that does not exist has no gradient: 1e12 times the usual is infinite in
        float16.

        Once for embeddings that a layer makes under autocast, with the backward pass outside and
        inside of it, and once for embeddings that come in half outright, with keys.
        """
        x, y = torch.randn(10, 6, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 4
        x[zero] = 0.0
        for inside in (False, True):
            loss, layer = make(5, 4), nn.Linear(6, 5, bias=False)
            with torch.autocast("cpu", dtype=half):
                value = loss(layer(x), y)
                if inside:
                    value.backward()
            if not inside:
                value.backward()
            assert value.dtype == torch.float32
            self.assert_usual(layer, loss)
        loss, z = make(5, 4), nn.Parameter(x[:, :5].to(half))
        loss(z, y, z.detach()).backward()
        self.assert_usual(nn.ParameterList([z]), loss)

    @staticmethod
    def assert_usual(*modules: nn.Module) -> None:
        parameters = (p for module in modules for p in module.parameters())
        for gradient in (p.grad for p in parameters if p.grad is not None):
            assert bool(torch.isfinite(gradient).all())
            assert float(gradient.abs().max()) < 1e4

    def test_predictions_are_made_in_float32_under_autocast(self, make: Any) -> None:
        z = batch()[0].float()
        loss = make(5, 4)
        for name in ("logits", "posterior", "distances"):
            if (method := getattr(loss, name, None)) is None:
                continue
            torch.manual_seed(0)
            state = {key: value.clone() for key, value in loss.state_dict().items()}
            expected = method(z)
            torch.manual_seed(0)
            loss.load_state_dict(state)  # a draw moves the stored noise on
            with torch.autocast("cpu", dtype=torch.bfloat16):
                result = method(z)
            assert result.dtype == torch.float32
            torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)

    def test_autocast_computes_in_float32_and_keeps_types(self, make: Any) -> None:
        z, y = batch()
        loss = make(5, 4)
        expected = loss(z.float(), y)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(z.float(), y)
        assert value.dtype == torch.float32
        assert value.item() == pytest.approx(float(expected), rel=1e-6)
        assert float(loss(z.bfloat16(), y)) == pytest.approx(float(expected), rel=0.05)
        assert all(p.dtype == torch.float32 for p in loss.parameters())

    def test_bad_input_gets_a_sentence(self, make: Any) -> None:
        z, y = batch()
        loss = make(5, 4).double()
        for wrong in ((z[:, :3], y), (z, y[:3]), (z, y.double()), (z.long(), y)):
            with pytest.raises(ValueError, match="embeddings must be"):
                loss(*wrong)
        if hasattr(loss, "proxies"):
            with pytest.raises(ValueError, match=r"3 of 8 .*first: -1"):
                loss(z, torch.tensor([0, -1, 4, 1, 2, 3, 9, 0]))

    def test_a_setting_that_its_type_does_not_list_is_refused(self, make: Any) -> None:
        for name, hint in typing.get_type_hints(inspect.unwrap(make.__init__)).items():
            if typing.get_origin(hint) is typing.Literal:
                allowed = ", ".join(map(str, typing.get_args(hint)))
                says = f"{make.__name__}: {name}='nonsense' must be one of {allowed}"
                with pytest.raises(ValueError, match=says):
                    make(5, 4, **{name: "nonsense"})

    def test_states_its_parameter_groups(self, make: Any) -> None:
        loss = make(5, 4)
        assert all(bool(torch.isfinite(value).all()) for value in loss.state_dict().values())
        groups = contract.param_groups(loss, Optim(lr=0.1, proxy_lr_scale=2.0))
        stated = {id(p) for group in groups for p in group["params"]}
        assert stated == {id(p) for p in loss.parameters() if p.requires_grad}
        if hasattr(loss, "proxies"):
            assert loss.proxies.shape == (4, 5)
            assert loss.logits(batch()[0].float()).shape == (8, 4)
            of_proxies = [g for g in groups if any(p is loss.proxies for p in g["params"])]
            assert [group["lr"] for group in of_proxies] == pytest.approx([0.2])

    def test_what_is_not_finite_is_not_hidden(self, make: Any) -> None:
        """A loss that mined such rows away would let a run go on with NaN."""
        for number in (math.nan, math.inf, -math.inf):
            for rows in ([0], [0, 4], [*range(8)]):
                z = torch.randn(8, 5)
                z[rows, 1] = number
                value = make(5, 4)(z.requires_grad_(), torch.arange(8) % 4)
                assert not bool(torch.isfinite(value)), (number, rows)
        loss = make(5, 4)
        if isinstance(loss, contract.Keyed):  # nor among keys
            loss.bank, y = Bank(16, 5), torch.arange(8) % 4
            loss(torch.randn(8, 5), y, torch.randn(8, 5))
            z = torch.randn(8, 5)
            z[3, 2] = math.nan
            assert not bool(torch.isfinite(loss(z.requires_grad_(), y, z.detach())))

    def test_class_numbers_mean_nothing(self, make: Any) -> None:
        """Permuting class ids together with everything that is kept per class changes nothing."""
        z, y = batch()
        loss = make(5, 4).double()
        order = torch.tensor([2, 0, 3, 1])  # new id -> old id
        other = copy.deepcopy(loss)
        for kept in other.parameters():
            dims = [d for d, size in enumerate(kept.shape) if size == 4]
            if dims:
                kept.data = kept.data.index_select(dims[-1], order)
        assert other(z, order.argsort()[y]).item() == pytest.approx(loss(z, y).item(), rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-9, 0.99e-12, 0.0])
def test_unit_rows_of_short_vectors(scale: float) -> None:
    """Shorter than 1e-12 there is no direction and no gradient; above, what normalize gives, bit
    for bit.
    """
    z = (scale * nn.functional.normalize(torch.randn(4, 5, dtype=torch.float64))).requires_grad_()
    made = unit(z)
    torch.autograd.backward((made * torch.randn(4, 5, dtype=torch.float64)).sum())
    assert z.grad is not None
    if scale > 1e-12:
        assert torch.equal(made, nn.functional.normalize(z))
        assert float((z.grad * z.detach()).sum(1).abs().max()) < 1e-12  # none along the row
        assert float(z.grad.abs().max()) > 0
    else:
        assert float(made.abs().max()) == 0 == float(z.grad.abs().max())


def test_a_constant_anchor_has_no_signal_and_its_pairs_are_left_out() -> None:
    z, y = batch()
    z[3] = 0.7
    loss = SNRContrastive(5, positive_margin=0.1, negative_margin=3.0).double()
    of: dict[bool, list[float]] = {True: [], False: []}
    for i in range(8):
        for j in range(8):
            if i not in (j, 3):
                ratio, same = float((z[i] - z[j]).var() / z[i].var()), bool(y[i] == y[j])
                of[same].append(max(ratio - 0.1 if same else 3.0 - ratio, 0.0))
    expected = sum(np.mean([term for term in terms if term]) for terms in of.values())
    assert float(loss(z, y)) == pytest.approx(expected, rel=1e-9)


@given(labels=st.lists(st.integers(-1, 4), min_size=1, max_size=9), lengths=st.floats(0.01, 100))
@settings(max_examples=20, deadline=None)
def test_class_vectors_turn_to_the_mean_directions(labels: list[int], lengths: float) -> None:
    """Whatever the lengths of the embeddings. Other labels belong to other processes."""
    z, _ = batch(size=len(labels))
    z[1:] *= lengths
    before = batch(seed=1, size=4)[0]
    after = before.clone()
    turned = turn_to_means(after, z, torch.tensor(labels))
    classes = {label for label in labels if 0 <= label < 4}
    assert turned == len(classes)
    for j in range(4):
        own = [row / np.linalg.norm(row) for row in z.numpy()[np.array(labels) == j]]
        expected = before[j].numpy()
        if own:
            mean = np.mean(own, axis=0)
            expected = np.linalg.norm(expected) * mean / np.linalg.norm(mean)
        np.testing.assert_allclose(after[j].numpy(), expected, rtol=1e-10)


def test_protocols_tell_losses_apart() -> None:
    """Who offers what is as it should be: a protocol that all or none meet would test nothing."""
    made = {make.__name__: make(5, 4) for make in LOSSES}
    assert all(isinstance(loss, contract.Loss) for loss in made.values())

    def offering(protocol: Any) -> set[str]:
        return {name for name, loss in made.items() if isinstance(loss, protocol)}

    proxy = {make.__name__ for make in LOSSES if contract.has_proxies(make)}
    assert offering(contract.Classifier) == proxy
    assert offering(contract.Spreadable) == proxy - {"MemVir", "ProxyGML"}
    assert offering(contract.Keyed) == set(made) - proxy
    scheduled = {"ArcFace", "CosFace", "InterTopK", "SphereFace", "Joint", "MemVir"}
    assert offering(contract.Scheduled) == scheduled
    assert offering(contract.Estimated) == offering(contract.Probabilistic) == {"VMF"}
    assert offering(contract.Featured) == {"SimPLE"}
    assert offering(contract.Remembering) == {"BroadFace"}
    compared = {"Softmax", "CosFace", "Hyperbolic", "Joint", "LogRatio", "NPair", "PairBCE"}
    assert offering(contract.Compared) == {*compared, "SimPLE", "GroupLoss", "LSoftmax"}
    assert "NormFace" not in offering(contract.Grouped)
    assert contract.similarity_trained_by(made["NormFace"]) == "cosine"
    assert contract.similarity_trained_by(made["NPair"]) == "dot"
    assert contract.features_of(SimPLE(5, features="polarlike")) == "polarlike"
    assert contract.features_of(made["NormFace"]) == "raw"


@pytest.mark.parametrize(
    ("loss", "remedy"), [(HUG, "spread_classes"), (partial(ProxyGML, num_proxies=1), "weight=0")]
)
def test_products_of_more_classes_than_memory_holds_are_refused(loss: Any, remedy: str) -> None:
    made = loss(2, 65_537)
    with pytest.raises(LikenessError, match=remedy):
        made(torch.randn(2, 2), torch.arange(2))

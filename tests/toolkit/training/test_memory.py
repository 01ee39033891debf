"""The bank of keys and the encoder that moves slowly."""

from __future__ import annotations

import torch
from torch import nn

from likeness.toolkit.training.memory import Bank, momentum_encoder, update_encoder


def test_bank_is_first_in_first_out() -> None:
    bank = Bank(5, 1)
    written: list[tuple[float, int]] = []
    for step in range(4):
        keys = torch.tensor([[2.0 * step], [2.0 * step + 1]])
        slots = bank.enqueue(keys, torch.tensor([step, step]))
        assert torch.equal(bank.keys[slots], keys)
        written += [(2.0 * step, step), (2.0 * step + 1, step)]
        kept = {
            (float(key), int(label))
            for key, label in zip(bank.keys, bank.labels, strict=True)
            if label >= 0
        }
        assert kept == set(written[-5:])


def test_encoder_is_the_moving_average_with_its_batch_norm_buffers() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    encoder = momentum_encoder(network)
    expected = {name: value.clone() for name, value in network.state_dict().items()}
    for _ in range(3):
        network(torch.randn(8, 3) + 5)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter))
        update_encoder(encoder, network, 0.9)
        for name, value in network.state_dict().items():
            expected[name] = (
                0.9 * expected[name] + 0.1 * value if value.is_floating_point() else value.clone()
            )
    for name, value in encoder.state_dict().items():
        torch.testing.assert_close(value, expected[name])
    assert not any(parameter.requires_grad for parameter in encoder.parameters())

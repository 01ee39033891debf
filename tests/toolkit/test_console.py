"""Names are printed as they are, and the second signal stops at once, whichever it is."""

from __future__ import annotations

import os
import signal

import pytest

from toolkit.console import console, interruptible
from toolkit.data.reading import Bad
from toolkit.training.log import BadItems

# rich reads these as a style, the end of one that never began, and an emoji
NAMES = "a[bold].wav", "b[/red].wav", "c:dog:.wav"


def test_names_are_not_read_as_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_width", 200)
    bad = BadItems(0.9)
    bad.count([Bad(name, "[no] sound") for name in NAMES], 10)
    bad.report()
    console.print("from [runs/an4]")
    output = capsys.readouterr().err
    for name in NAMES:
        assert f"skipped {name}: [no] sound" in output
        assert output.count(name) == 2
    assert "from [runs/an4]" in output


@pytest.mark.parametrize(("number", "start"), [(1, "1 item was "), (2, "2 items were ")])
def test_one_item_is_no_plural(number: int, start: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad = BadItems(0.9)
    bad.count([Bad(f"name{k}", "empty") for k in range(number)], 10)
    capsys.readouterr()
    bad.report()
    assert capsys.readouterr().err.startswith(start)


@pytest.mark.parametrize(
    ("first", "second"),
    [(a, b) for a in (signal.SIGINT, signal.SIGTERM) for b in (signal.SIGINT, signal.SIGTERM)],
)
def test_the_second_signal_stops_at_once(first: signal.Signals, second: signal.Signals) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with interruptible() as asked:
        assert not asked()
        os.kill(os.getpid(), first)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), second)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before

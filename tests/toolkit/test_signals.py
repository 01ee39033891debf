"""Signals in any number and order end a process once, and a step that is saved is not disturbed."""

import io
import itertools
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest

from likeness.toolkit import signals
from likeness.toolkit.console import say
from likeness.toolkit.signals import interruptible
from tests.scripts import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
# All pairs, and longer rows in which each is the first and the last once.
ORDERS = [
    *itertools.product(NAMES, repeat=2),
    *((*order, *NAMES * 5, order[0]) for order in itertools.permutations(NAMES)),
]
SOME = ORDERS[:: len(ORDERS) // 4]
WORKS = """
import time
from likeness.errors import one_sentence
from likeness.toolkit import signals

signals.AGAIN_SECONDS = {}
with one_sentence("program", for_good=True):
    try:
        print("at work", flush=True)
        while True:
            time.sleep(60)
    finally:
        {}
"""
# signals come while it sums, too
CLEANS = WORKS.format(signals.AGAIN_SECONDS, "sum(range(10**6)); print('cleaned', flush=True)")
WAITS = WORKS.format(0, "print('cleaning', flush=True); time.sleep(60)")
FORKS = """
import os, time
from likeness.errors import one_sentence

def wait():
    print("at work", flush=True)
    time.sleep(60)

with one_sentence("program", for_good=True):
    os.register_at_fork(after_in_parent=wait)
    if not os.fork():
        os._exit(0)
    while True:
        time.sleep(60)
"""
HOLDS = """
import time
from likeness.errors import one_sentence
from likeness.toolkit.signals import held

with one_sentence("program", for_good=True):
    try:
        with held():
            print("at work", flush=True)
            input()
            print("begun", flush=True)
    finally:
        print("ended", flush=True)
"""
SAVES = """
import sys
from likeness.toolkit.signals import ended_by_signals, interruptible

with ended_by_signals(), interruptible() as is_asked:
    print("at work", flush=True)
    while not is_asked():
        pass
    sys.stdin.readline()
    print("saved", flush=True)
"""


@contextmanager
def started(script: str, **more: int) -> Iterator[subprocess.Popen[str]]:
    """A Python process of its own group, once it is at work; it is gone in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **more,  # type: ignore[arg-type]
    )
    try:
        assert process.stdout.readline() == "at work\n", process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "order",
    # a process for each order
    [pytest.param(order, marks=() if order in SOME else pytest.mark.slow) for order in ORDERS],
    ids=lambda order: f"{len(order)}-{'-'.join(order[:3])}",
)
def test_signals_in_any_order_end_a_process_once(order):
    """What it does in the end is done, and there is one sentence."""
    with started(CLEANS) as process:
        for name in order:
            os.killpg(process.pid, getattr(signal, name))
        output, errors = process.communicate()
    assert process.returncode == 130
    assert output == "cleaned\n"
    assert errors.count("\n") == 1
    assert errors.startswith("program: stopped by ")


def test_a_later_signal_leaves_at_once():
    with started(WAITS) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "cleaning\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_a_signal_that_python_drops_comes_again():
    """Nothing that is raised in what is called after a fork reaches the program."""
    with started(FORKS) as process:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "program: stopped by SIGTERM\n")


def test_what_is_being_started_is_known_before_it_is_ended():
    with started(HOLDS) as process:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        assert process.communicate("go on\n")[0] == "begun\nended\n"
    assert process.returncode == 130


@pytest.mark.parametrize("order", SOME)
def test_a_step_that_is_saved_is_not_disturbed(order):
    with started(SAVES) as process:
        for name in order:
            os.killpg(process.pid, getattr(signal, name))
        output, errors = process.communicate("go on\n")
    assert (process.returncode, output) == (0, "saved\n")
    assert errors.count("finishing this step") == 1


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_only_a_later_ctrl_c_stops_at_once(first, second, monkeypatch):
    before = [signal.getsignal(number) for number in signals.ENDING]
    with interruptible() as asked:
        assert not asked()
        os.kill(os.getpid(), getattr(signal, first))
        assert asked()
        os.kill(os.getpid(), getattr(signal, second))  # as `timeout` tells the group
        monkeypatch.setattr(signals, "AGAIN_SECONDS", 0)
        with pytest.raises(KeyboardInterrupt) if second == "SIGINT" else nullcontext():
            os.kill(os.getpid(), getattr(signal, second))
    assert [signal.getsignal(number) for number in signals.ENDING] == before


def test_nohup_outlives_its_terminal():
    ignored = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{CLEANS}"
    with started(ignored) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate()
    assert "stopped by SIGTERM" in errors


def test_what_is_said_to_a_closed_terminal_is_lost_and_nothing_else():
    ours, theirs = pty.openpty()
    with io.TextIOWrapper(os.fdopen(theirs, "wb", 0), write_through=True) as stream:
        os.close(ours)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            say("nobody reads this")
            say("nor this")


def test_the_handlers_of_a_process_are_its_own():
    """A process that is forked does not end by them: the one that forked it ends it."""
    with signals.ended_by_signals():
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

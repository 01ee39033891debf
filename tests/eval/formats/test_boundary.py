"""Native readers in a process of their own: what happens there is an error here and nothing more;
the answer is bytes and JSON.
"""

from __future__ import annotations

import base64
import json
import math
import operator
import os
import socket
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval.formats import boundary, embeddings
from eval.formats.boundary import Ended, Limits, Process, _Damaged, _receive, _send
from eval.types import Embeddings

LIMITS = Limits(seconds=20, memory=1 << 27, answer=1 << 16)
# A Parquet file of four embeddings in which one byte of the footer is another: Arrow 26 ends the
# whole process when it reads it.
ABORTS = (
    "c-nnb%}(1u5Z)Na^#N2kthH8ih@xUqDS%@Y3dmAfr%8Z9Aczv+<|Gz1IJRqtzf_etx9?E3mp(#omHHSxqCQB~*|qaS"
    "Rk7Nco!Qy_zHcXr_vn5JBYc1lidcp~!cuM-&1G9bYtbNC+xHhsGcyPw0Zh(h!SlUAV6cE4E)4<$Q2MxE#3Y3yB0@T4"
    "9^EQvZY<-#6JXizQw*Q5m=#`vTZajD3-$%<C)gbrq6kfc<tf7fiXtwKq!TfcJ^}iVCy&<|*C-o%1WWbm@AavAnX&^|"
    "RJ|ocq`3Xo>DpLAc=D-01h+GbwsUY}Ng&dt)9wWk7O=E!vMrH_o*VbDfUrC(kVlT^bREB!WTGELU8KlrPBk@@!;|W)"
    "gj9xzVORN_fvL&nfBLNE;2{W5O=V7%R1L{M#vo)4v6AZG+yhR)B+9Q0Ozm67e6ZUi_-C3ttyWpj?-3-@xyp|jnA#t~"
    "e6Xiuhy%IGt*FSF3=2|=ME2Zs$9LkGkoSey?Yf>FxxJghTE5T@V%K*H9}t<O`}@1iwd4mNcN2?j7}TPaHfS<lQ~I1*"
    "r?g7xDJ`G!J<GaRzhY};Sg$tHe1O91n{2iC%0U7S#2w467n^=PY&E_3_-HHaY@EBhE_IKM)xO<a@-}^)!<Ct<U5B=D"
    "cyV%6?<W#=ScQ|+hon}_p28`v`R4JEFBx24tGjyB;u_1&@ch;pL@Vq_qsmMFyoZaRHRd|q!?R9p^@gStWqyuRy<$$^"
    "11P4fvBN<&MopnZJvC21Y3hUfwe&ux1h6-(U(lkBw2zI^BP!L(uz#sOnzou+;YosD8RtVJAKKBo3#T{V4#Rmnih`^B"
    "r4z+&;OC9y1%08Un()_4Ci)8Bg+2IC{RP*I07U"
)


@pytest.mark.parametrize(
    ("function", "arguments", "limits", "keyword"),
    [
        (os.abort, (), LIMITS, "signal 6"),
        (os._exit, (3,), LIMITS, "exit code 3"),
        (math.factorial, (10**8,), LIMITS._replace(seconds=0.2), "processor time"),
        (operator.mul, ("x", 1 << 30), LIMITS, "128 MiB"),
        (json.loads, ("{",), LIMITS, "Expecting"),
        (math.floor, ("x",), LIMITS, "TypeError"),
    ],
)
def test_whatever_happens_there_is_one_error_here(
    function: object, arguments: tuple[object, ...], limits: Limits, keyword: str
) -> None:
    with Process() as process, pytest.raises(ValueError, match=keyword):
        process.ask(function, *arguments, about="x", limits=limits)  # type: ignore[arg-type]


def test_a_process_is_asked_again_after_an_error_and_not_after_its_end() -> None:
    with Process() as process:
        with pytest.raises(FileNotFoundError):
            process.ask(os.stat, "/absent", about="x", limits=LIMITS)  # type: ignore[arg-type]
        assert process.usable
        with pytest.raises(ValueError, match="signal 6"):
            process.ask(os.abort, about="x", limits=LIMITS)
        assert not process.usable
    with Process() as process:  # the starter is whole
        assert process.usable
        child = os.fork()
        if not child:
            os._exit(process.usable)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_question_after_the_end_of_a_process_says_so_and_leaves_the_starter_alone() -> None:
    """A second thread waits with a harmless file while the first one's file ends the process."""
    with Process() as process, Process() as other:
        starter = boundary._starter
        with pytest.raises(ValueError, match="signal 6"):
            process.ask(os.abort, about="hostile", limits=LIMITS)
        with pytest.raises(Ended, match="harmless"):
            process.ask(os.getpid, about="harmless", limits=LIMITS)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="Expecting"):
            other.ask(json.loads, "{", about="x", limits=LIMITS)
    with Process():
        assert boundary._starter is starter


def test_a_process_that_the_garbage_collector_ends_during_another_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unused, starter = Process(), boundary._starter
    assert starter is not None
    exchange, pid = starter._exchange, unused._pid

    def collecting(command: str, value: object, given: socket.socket | None) -> int:
        unused.close()
        return exchange(command, value, given)

    monkeypatch.setattr(starter, "_exchange", collecting)
    with Process() as process, pytest.raises(ValueError, match="Expecting"):
        process.ask(json.loads, "{", about="x", limits=LIMITS)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_interrupt_during_an_order_is_not_taken_for_the_answer_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Process():
        starter = boundary._starter
    assert starter is not None

    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(boundary, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Process()
    monkeypatch.undo()
    with Process() as process, pytest.raises(ValueError, match="signal 6"):
        process.ask(os.abort, about="x", limits=LIMITS)
    assert boundary._starter is not starter


def test_without_fork_the_functions_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Embeddings(("a", "b"), np.eye(2, dtype=np.float32), {"model": "m"})
    embeddings.write(tmp_path / "x.h5", written)
    monkeypatch.setattr(boundary, "FORKS", False)
    read = embeddings.read(tmp_path / "x.h5")
    assert (read.ids, read.meta["model"]) == (written.ids, "m")
    np.testing.assert_array_equal(read.matrix, written.matrix)
    with Process() as process:
        with pytest.raises(ValueError, match="x: it cannot be read"):
            process.ask(math.floor, "text", about="x", limits=LIMITS)  # type: ignore[arg-type]
        with pytest.raises(FileNotFoundError):
            process.ask(os.stat, "/absent", about="x", limits=LIMITS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 8,
        (2).to_bytes(8, "little") + b"[]",
        (1).to_bytes(8, "little") + b"{",
        *(
            len(text).to_bytes(8, "little") + text
            for text in (
                json.dumps({"arrays": arrays}).encode()
                for arrays in (
                    [["<f4", [1 << 40]]],
                    [["<f4", [-1]]],
                    [["|O", [1]]],
                    [["<U1", [1]]],
                    [["<f4", [0] * 9]],
                    [["|u1", [0]]] * 65,
                    [["<f4", [1 << 60, 0, 1 << 60], 3]],
                    7,
                )
            )
        ),
    ],
)
def test_a_hostile_answer_takes_no_memory(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        with pytest.raises(_Damaged):
            _receive(ours, limit=1 << 20)


def test_arrays_come_back_bit_for_bit() -> None:
    ours, theirs = socket.socketpair()
    arrays = [
        np.array([[1.5, np.nan]], "<f4"),
        np.zeros((0, 3)),
        np.array(True),
        np.arange(6, dtype=">i4")[::2],
    ]
    with ours, theirs:
        _send(theirs, {"value": "ü"}, arrays)
        header, result = _receive(ours)
    assert header == {"value": "ü"}
    assert [array.shape for array in result] == [array.shape for array in arrays]
    assert all(
        a.astype(b.dtype).tobytes() == b.tobytes() for a, b in zip(arrays, result, strict=True)
    )


def test_a_parquet_file_that_ends_arrow_s_process(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "e.parquet"
    path.write_bytes(zlib.decompress(base64.b85decode("".join(ABORTS))))
    with pytest.raises(ValueError, match=r"e\.parquet"):
        embeddings.read(path)
    embedded = Embeddings(("a", "b"), np.eye(2, dtype=np.float32))
    embeddings.write(path, embedded)
    assert embeddings.read(path).ids == embedded.ids


def test_reading_a_table_imports_no_native_reader_here(tmp_path: Path) -> None:
    """What is not imported here cannot crash here."""
    pytest.importorskip("pyarrow")
    import subprocess
    import sys

    path = tmp_path / "e.parquet"
    embeddings.write(path, Embeddings(("a",), np.ones((1, 2), np.float32)))
    program = (
        "import sys; from eval.formats import embeddings; embeddings.read(sys.argv[1]); "
        "print(sorted({'pyarrow', 'h5py', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_a_process_that_ends_while_another_waits_for_it_is_named() -> None:
    """Threads of the service share one process: a hostile file of one of them says nothing about
    those of the others.
    """
    raised: dict[str, BaseException] = {}

    def ask(name: str, function: Any, *arguments: object) -> None:
        try:
            process.ask(function, *arguments, about=name, limits=LIMITS._replace(seconds=0.2))
        except BaseException as error:
            raised[name] = error

    with Process() as process:
        process._lock.acquire()  # until all of them wait
        threads = [threading.Thread(target=ask, args=("hostile", math.factorial, 10**8))]
        threads += [
            threading.Thread(target=ask, args=(f"innocent {i}", os.getpid)) for i in range(2)
        ]
        for thread in threads:
            thread.start()
        process._lock.release()
        for thread in threads:
            thread.join()
        starter = boundary._starter
    assert "processor time" in str(raised.pop("hostile"))
    # One that came first was answered: os.getpid gives no answer of ours, which is another error.
    assert {type(value) for value in raised.values() if "TypeError" not in str(value)} <= {Ended}
    with Process() as process:  # by the same starter: it was not asked to end a process twice
        assert boundary._starter is starter
        assert process.usable


def test_an_order_that_is_interrupted_leaves_no_answer_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Process():
        with monkeypatch.context() as patch:
            patch.setattr(boundary, "_receive", interrupted)
            with pytest.raises(KeyboardInterrupt):
                Process()
        first, second = Process(), Process()
        with first, second:
            assert first._starter is second._starter
            assert first._pid != second._pid
            with pytest.raises(ValueError, match="signal 6"):
                second.ask(os.abort, about="x", limits=LIMITS)
            with pytest.raises(FileNotFoundError):  # the other one is whole
                first.ask(os.stat, "/absent", about="x", limits=LIMITS)  # type: ignore[arg-type]

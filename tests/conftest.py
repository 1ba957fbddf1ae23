"""Fixtures shared by all tests."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from compoclip.workers import available_cores

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from compoclip.evaluation import ModelEncoder
    from compoclip.models import LoadedModel
    from compoclip.search import PhotoIndex

gc.disable()  # until everything is imported and collected, which stays
os.fsync = lambda fd: None  # nothing takes the power away, and waiting for the disk takes long
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("COLUMNS", None)  # pytest-xdist states a width; tables are whole without one
# Threads of several test processes would wait for one another on a small machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Set what tests compute with, and import nothing where other processes run the tests."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    import torch
    from hypothesis import settings

    torch.set_num_threads(1)
    # A busy machine is no failure: no test is timed.
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")


def pytest_collection(session: pytest.Session) -> None:
    """Import a share of the test files first, so that one process compiles each, and not all do."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or session.config.args != session.config.getini("testpaths"):
        return
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    number = int(worker["workerid"].removeprefix("gw"))
    for path in files[number :: worker["workercount"]]:
        with suppress(Exception, pytest.skip.Exception):  # collecting the file reports it
            importlib.import_module(path.stem)


def pytest_xdist_auto_num_workers() -> int:
    """A process more than cores: tests that wait for a process of their own leave a core idle."""
    return available_cores() + 1


_LONG = (
    "test_train_frozen.py",
    "test_train_distributed.py",
    "test_docs.py",
    "test_cli_process.py",
    "test_cli_demo.py",
    "test_lab_run.py",
    "test_scripts_gpu_check.py",
    "test_models_compile.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of long tests come first: behind all others one process would wait for them."""
    items.sort(key=lambda item: item.path.name not in _LONG)


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the garbage collector need not look at it again."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # libraries complain of what is left at the end
    gc.set_threshold(20_000)  # what a test leaves takes little memory, and looking takes time
    gc.enable()


_MANY = 50_000
_looked_through = [0]


def pytest_runtest_logfinish() -> None:
    """So does what was imported and cached since: every run of training collects all garbage."""
    if gc.get_stats()[2]["collections"] > _looked_through[0]:
        if len(gc.get_objects()) > _MANY:
            gc.collect()
            gc.freeze()
        _looked_through[0] = gc.get_stats()[2]["collections"]


def pytest_report_header() -> str:
    """Say what computes: rounding differs between kinds of processors."""
    import torch

    return f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"


_READ = ("OMP_", "MKL_", "TORCH_", "CUDA_", "HF_", "XDG_", "RANK", "WORLD_", "LOCAL_", "COLUMNS")
"""How names begin in the environment that torch, its ranks, caches and tables read."""


def process_state() -> dict[str, object]:
    """Return what all tests of a process share and no test may leave changed."""
    import torch

    backends: Any = torch.backends
    products = {backends.mkldnn.matmul.fp32_precision, backends.mkldnn.conv.fp32_precision}
    environment = {name: value for name, value in os.environ.items() if name.startswith(_READ)}
    return {
        "lower precision": sorted(products - {"none", "ieee"}),
        "matrix products": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "type": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "denormal numbers": bool((torch.tensor([1e-40]) * 1).item()),
        "environment": environment,
        "folder": os.getcwd(),
    }


@pytest.fixture(autouse=True)
def process_state_stays() -> Iterator[None]:
    """A test that changes what later tests compute with fails itself, not the later ones."""
    before = process_state()
    yield
    assert process_state() == before


@pytest.fixture
def restored_environment() -> Iterator[None]:
    """Undo what the import of another library sets, as sentence-transformers, mteb and ms-swift."""
    environment = os.environ  # in whose place ms-swift puts a copy
    with mock.patch.object(os, "environ", environment), mock.patch.dict(environment):
        yield


@pytest.fixture
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for what is cached of data, in the place of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real photos, captions and annotations kept beside the project; skips when absent.

    Looked for in $COMPOCLIP_SHARED_DATA, else in ../shared/data beside the checkout.
    """
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("COMPOCLIP_SHARED_DATA", default))
    if not path.is_dir():
        pytest.skip(f"real data not found at {path}; set COMPOCLIP_SHARED_DATA")
    return path


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `write_world` writes, with few words in the tokenizer, for tests that only read it."""
    from method_data import write_world
    from train_helpers import FEW

    return write_world(tmp_path_factory.mktemp("world"), merges=FEW)


@pytest.fixture(scope="module")
def bundled() -> LoadedModel:
    """The bundled model, for tests that leave it as it is."""
    from compoclip.models import load_model

    return load_model("bundled")


@pytest.fixture(scope="module")
def encoder(world: Path) -> ModelEncoder:
    """The model of the world, as `evaluate` and `search` ask it."""
    from compoclip.evaluation import ModelEncoder
    from compoclip.models import load_model

    return ModelEncoder(load_model(world / "base"))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five photos to search, and files that are none."""
    from search_photos import write_photos

    return write_photos(tmp_path / "photos")


@pytest.fixture
def index(photos: Path, encoder: ModelEncoder, tmp_path: Path) -> PhotoIndex:
    """The index of `photos`, in the file `index`."""
    from search_photos import indexed

    return indexed(photos, encoder, tmp_path / "index")


@pytest.fixture(scope="session")
def written_squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `write_base` writes, for `squares` to copy."""
    from build.runs import write_base

    return write_base(tmp_path_factory.mktemp("squares"))


@pytest.fixture
def squares(written_squares: Path, tmp_path: Path) -> Path:
    """A folder of the test's own with a tiny checkpoint `base` and 40 captioned squares."""
    return shutil.copytree(written_squares, tmp_path, dirs_exist_ok=True)


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes are forked from one warm interpreter in the place of fresh ones, which take
    seconds to import torch; what a fresh one does is for test_workers.py."""
    from ranks_helpers import warm_context

    monkeypatch.setattr("compoclip.workers.get_context", lambda _: warm_context())


@pytest.fixture
def states_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished runs keep OUT/state, for tests that look into it."""
    monkeypatch.setattr("compoclip.training.run.remove_states", lambda folder: None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium of the system, driven by Playwright; skips when either is absent.

    It is closed with the module: a process that another test forks and that lives on would hold
    the pipes of the driver open, and closing would wait for it for ever.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    flags = (
        "no-sandbox", "disable-gpu", "disable-quic", "disable-sync", "no-first-run",
        "disable-background-networking", "disable-component-update",
    )  # fmt: skip
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=chromium, args=[f"--{flag}" for flag in flags], timeout=120_000
        )
        yield started
        started.close()

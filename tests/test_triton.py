"""Where Triton is missing or broken, torch operations are used."""

import importlib
import warnings

import pytest

from mecam._triton import kernels


def fails_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise error

    monkeypatch.setattr(importlib, "import_module", fail)


def test_a_triton_that_is_missing_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(ModuleNotFoundError("No module named 'triton'", name="triton"), monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernels("mecam.missing") is None


@pytest.mark.parametrize("error", [RuntimeError("no driver"), ImportError("libcuda.so.1: cannot open")])
def test_a_triton_that_is_broken_is_reported(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_with(error, monkeypatch)
    with pytest.warns(UserWarning, match=rf"Triton does not work \({type(error).__name__}: {error}\); slower torch"):
        assert kernels(f"mecam.broken.{type(error).__name__}") is None

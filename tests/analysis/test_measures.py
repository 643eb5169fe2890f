"""Further measures by name: their values against dense matrices, their columns in the table and in JSON."""

import pytest
import torch
from torch.func import hessian, jacrev, vmap
from torch.nn import functional as F

from mecam.analysis import table5
from mecam.analysis.curvature import curvature
from mecam.analysis.measures import DRAWS, MEASURES, SKETCH, find_all, further
from mecam.analysis.operators import EmpiricalFisher
from mecam.analysis.spectrum import trace
from mecam.analysis.table5 import Row
from tests.analysis.nets import at, data, flat, network, objective

X, Y = data()
THETA = flat(list(network().parameters()))


def test_the_values_are_those_of_the_dense_matrices() -> None:
    found = further(objective(), find_all("trace, gaussnewton, fisher"))
    assert list(found) == ["tr H", "λ(G)", "tr G", "λ(F)", "tr F"]
    full = hessian(lambda theta: at(theta, X, Y))(THETA)
    scores = vmap(lambda x, y: jacrev(lambda theta: (at_one(theta, x) * y).sum())(THETA))(X, F.one_hot(Y, 3))
    empirical = scores.T @ scores / len(X)
    assert found["λ(F)"] == pytest.approx(float(torch.linalg.eigvalsh(empirical)[-1]), rel=2e-3)
    for column, operator, true in (("tr F", EmpiricalFisher(objective()), empirical), ("tr H", objective(), full)):
        estimate = trace(operator, sketch=SKETCH, draws=DRAWS)
        assert found[column] == estimate.estimate
        assert abs(estimate.estimate - float(true.trace())) < 4 * estimate.standard_error
    assert found["λ(G)"] > 0


def at_one(theta: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    w1, b1, w2, b2 = theta[:32].view(8, 4), theta[32:40], theta[40:64].view(3, 8), theta[64:]
    return torch.log_softmax(torch.tanh(w1 @ x + b1) @ w2.T + b2, 0)


def test_measures_of_a_radius_have_no_column_of_their_own() -> None:
    assert further(objective(), find_all(["average"])) == {}


def test_an_unknown_measure_is_refused_with_a_near_match() -> None:
    with pytest.raises(ValueError, match="there is no measure 'gausnewton'; did you mean gaussnewton"):
        find_all("trace,gausnewton")


@pytest.mark.parametrize("name", MEASURES)
def test_every_measure_says_what_it_is(name: str) -> None:
    assert MEASURES.summary(name).endswith(".")


def test_the_table_and_json_have_the_columns() -> None:
    measured = curvature(objective(), (0.1,), average=2)
    rows = {"one": Row([measured, measured], further=[{"tr H": 2.0}, {"tr H": 4.0}]), "other": Row([measured])}
    text = table5.table(rows)
    assert "tr H" in text
    assert "3 ± 1" in text
    assert "adaptive average sharpness" in text
    assert rows["one"].to_dict()["tr H"] == {"mean": 3.0, "std": 1.0}
    assert "tr H" not in rows["other"].to_dict()

"""What fine-tuning a time budget allows."""

import pytest

from mecam.fitting.tuning import FEWEST, MARGIN, MOST, Rates, batch_on, settings

RATES = Rates(step=1.0, images=100.0, counts=[100, 100, 100, 100], evaluations=2)


def test_the_time_of_a_run() -> None:
    # 2 evaluations of 80 images of the target and 3 x 20 of the sources, and all 400 images twice at the end
    assert RATES.fixed == pytest.approx((2 * (80 + 60) + 2 * 400) / 100)
    assert RATES.runs == 5
    assert RATES.steps(RATES.seconds(150)) in (149, 150)
    assert RATES.seconds(150) == pytest.approx(5 * (150 + 10.8) / MARGIN)
    assert RATES.steps(1.0) == 0


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (FEWEST - 5, {}),
        (200.5, {"optimizer": "adam", "steps": 200, "batch": 8, "evaluate_every": 200}),
        (1200.5, {"optimizer": "mecam", "steps": 400, "batch": 8, "evaluate_every": 400}),
        (10**6, {"optimizer": "mecam", "steps": MOST, "batch": 8, "evaluate_every": MOST}),
    ],
)
def test_settings_follow_the_time(steps: float, expected: dict[str, object]) -> None:
    assert settings(RATES, RATES.seconds(steps), 8) == expected  # type: ignore[arg-type]


def test_a_cpu_takes_small_batches() -> None:
    assert [batch_on("cpu", domains) for domains in (2, 4, 20)] == [8, 4, 2]
    assert batch_on("cuda", 4) == 32

"""Run folders for the tests of the page: a comparison with clients, as a grid with validation would leave it."""

from pathlib import Path
from typing import Any

from run_folders import write_run

METHODS = {"alone": 0.6, "fedavg": 0.7, "finetuned": 0.75, "kin": 0.9}


def write_comparison_of(
    root: Path, *, clients: int = 6, seeds: int = 1, names: str = "client {}", validated: bool = True, **settings: Any
) -> Path:
    """Four methods with two step sizes each, of which the smaller is better; Kin wins."""
    for seed in range(seeds):
        for name, accuracy in METHODS.items():
            for step, loss in ((0.1, 0.5), (0.3, 0.6)):
                each = {names.format(i): accuracy + (i % 5 - 2) / 50 for i in range(clients)}
                mean = sum(each.values()) / clients
                summed = {"final_own_test_accuracy": mean, "final_own_worst_decile": mean - 0.05, "worst_decile": 0.3}
                write_run(
                    root,
                    f"{name}-{step}-{seed}",
                    {"name": name},
                    5,
                    mean,
                    seed=seed,
                    summed=summed | ({"final_validation_loss": loss} if validated else {}),
                    clients=each,
                    extra={"own_test_accuracy": mean, "sampled": clients, "bytes_down": 2600, "bytes_up": 2600},
                    local={"step_size": step},
                    **settings,
                )
    return root / str(settings.get("experiment", "demo"))

"""Run folders written by hand, for the tests of the reports."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

FEDAVG = {"name": "fedavg"}
FEDKIN = {"name": "fedkin", "beta": 0.5}

Write = Callable[..., Path]


def write_run(
    root: Path,
    name: str,
    algorithm: dict[str, Any],
    reached: int | None = 20,
    final: float = 0.9,
    *,
    experiment: str = "demo",
    rounds: int = 30,
    status: str = "finished",
    diverged_at: int | None = None,
    seconds: float = 3.0,
    seed: int = 0,
    threshold: float = 0.8,
    summary: bool = True,
    extra: dict[str, Any] | None = None,
    summed: dict[str, Any] | None = None,
    clients: dict[str, float] | None = None,
    **sections: dict[str, Any],
) -> Path:
    """Write a run folder; its test accuracy reaches 80 % in the round `reached`.

    extra    further entries of every round
    summed   further entries of the summary
    clients  accuracy of each client's own model
    """
    folder = root / experiment / name
    folder.mkdir(parents=True)
    config: dict[str, Any] = {
        "name": experiment,
        "seed": seed,
        "rounds": 30,
        "threshold": threshold,
        "data": {"source": "digits"},
        "partition": {"clients": 20, "class_imbalance": 10.0, "size_imbalance": 1.0},
        "graph": {"message": "mean"},
        "model": {"kind": "softmax"},
        "local": {"step_size": 0.01, "epochs": 5},
    }
    for section, entries in sections.items():
        config[section] = config[section] | entries
    (folder / "config.json").write_text(json.dumps(config | {"algorithm": algorithm}))
    records = []
    for number in range(rounds):
        good = reached is not None and number >= reached
        gone = diverged_at is not None and number >= diverged_at
        loss = None if gone else 2.0 / (1 + number)
        records.append(
            {
                "round": number,
                "train_loss": loss,
                "test_loss": loss,
                "train_accuracy": 0.5,
                "test_accuracy": (final if number == rounds - 1 else 0.8) if good else 0.4,
                "seconds": 0.1,
                **(extra or {}),
            }
        )
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if summary:
        content = {
            "experiment": experiment,
            "run": name,
            "algorithm": algorithm["name"],
            "hyperparameters": {k: v for k, v in algorithm.items() if k != "name"},
            "status": status,
            "final_test_accuracy": final,
            "best_test_accuracy": final,
            "rounds_to_threshold": reached,
            "threshold": threshold,
            "seconds": seconds,
            "rounds": rounds,
            **(summed or {}),
        }
        if diverged_at is not None:
            content["diverged_at"] = diverged_at
        (folder / "summary.json").write_text(json.dumps(content))
    if clients is not None:
        lines = [json.dumps({"client": name, "own_accuracy": accuracy}) for name, accuracy in clients.items()]
        (folder / "clients.jsonl").write_text("\n".join(lines) + "\n")
    return folder

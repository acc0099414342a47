"""The server half: every algorithm of `simulated_systems`, one after the other on the same nodes."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp

from fedkin.flower import Strategy, initial_arrays
from simulated_systems import ALGORITHMS, NODES, ROUNDS, run_of

app = ServerApp()


class EvaluatedOnce(Strategy):
    """Clients say how large their memories are after the last round."""

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return super().configure_evaluate(server_round, arrays, config, grid) if server_round == ROUNDS else []


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run them, and write down the clients' memories at the end."""
    for name, algorithm in ALGORITHMS.items():
        run, out = run_of(algorithm), Path(str(context.run_config["out"])) / name
        settings: dict[str, Any] = {"take_part": run.take_part, "seed": run.seed, "min_nodes": NODES}
        strategy = EvaluatedOnce(algorithm, run.local, evaluate=True, out=out, **settings)
        result = strategy.start(grid, initial_arrays(run.model, run.seed), ROUNDS, timeout=60)
        (out / "square.json").write_text(json.dumps(result.evaluate_metrics_clientapp[ROUNDS]["square"]))

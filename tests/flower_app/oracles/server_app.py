"""The server half: the algorithms of `loops.CASES`, one after the other on the same nodes."""

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkin.flower import initial_arrays
from flower_oracles import strategy_of
from loops import CASES, simulation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run them, and write down how large the clients' memories are at the end."""
    take_part, rounds = int(context.run_config["take-part"]), int(context.run_config["rounds"])
    for members, _ in CASES:
        run = simulation(members[0], take_part=None if take_part == 20 else take_part)
        out = Path(str(context.run_config["out"])) / type(members[0]).__name__
        strategy = strategy_of(run, out=out, evaluate=True)
        result = strategy.start(grid, initial_arrays(run.model, run.seed), rounds, timeout=60)
        square = result.evaluate_metrics_clientapp[rounds]["square"]
        (out / "square.json").write_text(json.dumps(square))

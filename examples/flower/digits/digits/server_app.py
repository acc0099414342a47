"""The server half: which algorithm, for how many rounds, and how the result is measured."""

from pathlib import Path

from flwr.serverapp import ServerApp

from digits import task
from fedkin import FedAvg, FedKin, FedProx, Local
from fedkin.algorithms import Ditto
from fedkin.flower import Strategy, initial_arrays, measured

app = ServerApp()


@app.main()
def main(grid, context):
    """Run each algorithm."""
    config = context.run_config
    gamma = config["step-size"]
    algorithms = {
        "fedavg": FedAvg(step_size=gamma),
        "fedprox": FedProx(step_size=gamma, alpha=config["alpha"]),
        "fedkin": FedKin(step_size=gamma, beta=config["beta"]),
        "ditto": Ditto(step_size=gamma),
    }
    local = Local(epochs=config["epochs"], batch_size=config["batch-size"], order=config["order"])
    for name in config["algorithms"].split():
        strategy = Strategy(
            algorithms[name],
            local,
            seed=config["seed"],
            min_nodes=config["nodes"],
            min_replies=config["min-replies"],
            half=config["half"],
            identity=config["identity"],
            out=Path(config["out"]) / name,
            threshold=0.85,
        )
        strategy.start(
            grid,
            initial_arrays(task.MODEL, config["seed"]),
            num_rounds=config["rounds"],
            timeout=config["timeout"],
            evaluate_fn=measured(task.MODEL, task.of(context), local.l2),
        )

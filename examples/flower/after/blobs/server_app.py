"""The server half."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from blobs.task import Net
from fedkin import FedKin
from fedkin.flower import Strategy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
    """Run the federation."""
    strategy = Strategy(FedKin(beta=0.5), min_nodes=4, evaluate=True)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
    )
    print("accuracy", *(f"{m['accuracy']:.3f}" for m in result.evaluate_metrics_clientapp.values()))

"""The server half."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from blobs.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
    """Run the federation."""
    strategy = FedAvg(min_available_nodes=4)
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=context.run_config["num-server-rounds"],
    )
    print("accuracy", *(f"{m['accuracy']:.3f}" for m in result.evaluate_metrics_clientapp.values()))

"""The server half."""

from flwr.serverapp import ServerApp

from fedkin.flower import Strategy, initial_arrays
from scale import task

app = ServerApp()


@app.main()
def main(grid, context):
    """Run the rounds."""
    config = context.run_config
    strategy = Strategy(task.ALGORITHM, task.LOCAL, min_nodes=config["nodes"], out=f"{config['out']}/scale")
    strategy.start(grid, initial_arrays(task.MODEL), num_rounds=config["rounds"])

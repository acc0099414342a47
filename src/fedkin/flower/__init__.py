"""The same algorithms on a real federation: Flower carries the messages between the server and the nodes.

`server_app.py`:

    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy = Strategy(FedKin(step_size=0.01, beta=0.5), Local(epochs=5), out="results/flower/fedkin")
        strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=20)

`client_app.py`:

    app = client_app(Net, load_data)        # load_data(context) gives (x, y) or a DataLoader

Needs the extra `fedkin[flower]`.
"""

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError("fedkin.flower needs Flower: pip install 'fedkin[flower]'") from error

from fedkin.flower.client import Work, arrays, client_app, introduce
from fedkin.flower.server import Strategy, initial_arrays, measured

__all__ = ["Strategy", "Work", "arrays", "client_app", "initial_arrays", "introduce", "measured"]

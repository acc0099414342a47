"""The same algorithms on a real federation: Flower transports the messages between the server and the nodes.

server.py       the strategy: rounds, checks, faults
nodes.py        the clients of a run, their names and nodes
run_records.py  the folder of a run
evaluation.py   helpers for server apps
client.py       the client app
own_loop.py     a training loop of your own
tasks.py        a round's work at a node, and the client's memory
wire.py         what is sent, and the checks on it
keys.py         certificates and node keys

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

from fedkin.flower.client import arrays, client_app, introduce
from fedkin.flower.evaluation import initial_arrays, measured
from fedkin.flower.own_loop import Work
from fedkin.flower.server import Strategy
from fedkin.flower.tasks import memory_of

__all__ = ["Strategy", "Work", "arrays", "client_app", "initial_arrays", "introduce", "measured", "memory_of"]

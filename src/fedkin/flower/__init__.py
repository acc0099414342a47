"""The same algorithms on a real federation: Flower transports the messages between the server and the nodes.

server.py       the strategy: what is sent to nodes, and how replies are combined
run_loop.py     the rounds of a run, repeated or mended where they fail
nodes.py        which nodes are available, and who they are
roster.py       the clients of a run, by number
transport.py    messages to nodes, and the replies in time
checks.py       checks on everything that nodes send
guard.py        replies that are too large, and models that have become worse
ledger.py       what a round costs, who failed in it, and who is left out
run_records.py  the folder of a run
evaluation.py   helpers for server apps
settings.py     which settings are sensible, and how they are recorded
client.py       the client app
own_loop.py     a training loop of your own
tasks.py        a round's work at a node
memory.py       what a client keeps between rounds
wire.py         what is sent
layout.py       where a module's parameters are in what is sent
protection.py   noise of the server and of nodes
secure.py       secure sums of updates, by Flower's SecAgg+
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
from fedkin.flower.memory import memory_of
from fedkin.flower.own_loop import Work
from fedkin.flower.secure import SecureSum, secured
from fedkin.flower.server import Strategy

__all__ = [
    "SecureSum",
    "Strategy",
    "Work",
    "arrays",
    "client_app",
    "initial_arrays",
    "introduce",
    "measured",
    "memory_of",
    "secured",
]

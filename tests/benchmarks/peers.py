"""A round of federated averaging in other simulators, for ``speed.py``; each is optional (requirements-peers.txt).

    python tests/benchmarks/peers.py        # every one that is installed: 3 rounds of 4 clients on digits

Each function of ``PEERS`` takes ``(shards, build, lr, batch_size, rounds)`` and returns the seconds of each round and the
state dict of the final network. ``shards`` lists (x float32 [n, c, h, w], y int64 [n]) for each client; ``build()`` makes
the network, with the same weights every time. All clients take part in every round with one epoch of plain SGD, and the
server weights by samples. A round lasts from its configuration until the aggregate is there; start-up is outside.
"""

import asyncio
import importlib.util
import logging
import os
import tempfile
import time
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F


def batches(x, y, batch_size):
    """The same lean batches for everybody: a loader that fetches image by image would hide what a simulator costs."""
    return [(x[i], y[i]) for i in torch.randperm(len(y)).split(batch_size)]


# ---- Flower --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def handed_over(path):
    """Shards and network, read once by each Ray worker: all that a client function captures travels with every message."""
    torch.set_num_threads(1)
    return torch.load(path, weights_only=False, mmap=True)


def flower(shards, build, lr, batch_size, rounds):
    """Flower's Message API on Ray. Chosen: a worker for each core, evaluation off, data read once by each worker. Its
    simulator looks for messages and for replies every 0.1 s, and no option of ``run_simulation`` changes that."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    quiet["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    # patched, because Flower also appends to PYTHONPATH on every call
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, quiet):
        from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
        from flwr.clientapp import ClientApp
        from flwr.serverapp import ServerApp
        from flwr.serverapp.strategy import FedAvg
        from flwr.simulation import run_simulation

        logging.getLogger("flwr").setLevel(logging.ERROR)
        path, clients, seconds, final = str(Path(folder) / "shards.pt"), len(shards), [], {}
        torch.save((shards, build()), path)

        client, server = ClientApp(), ServerApp()

        @client.train()
        def train(message, context):
            shards, net = handed_over(path)
            x, y = shards[context.node_config["partition-id"]]
            net.load_state_dict(message.content["arrays"].to_torch_state_dict())
            optimiser = torch.optim.SGD(net.train().parameters(), lr)
            for images, labels in batches(x, y, batch_size):
                optimiser.zero_grad()
                F.cross_entropy(net(images), labels).backward()
                optimiser.step()
            answer = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
            return Message(content=RecordDict(answer), reply_to=message)

        class Timed(FedAvg):
            def configure_train(self, *args):
                self.began = time.perf_counter()
                return super().configure_train(*args)

            def aggregate_train(self, server_round, replies):
                arrived = [reply for reply in replies if reply.has_content()]
                if len(arrived) < clients:  # Flower itself would average the others
                    reasons = [reply.error.reason for reply in replies if reply.has_error()]
                    raise RuntimeError(f"{clients - len(arrived)} of {clients} clients failed: {reasons[:1]}")
                result = super().aggregate_train(server_round, replies)
                seconds.append(time.perf_counter() - self.began)
                return result

        @server.main()
        def main(grid, context):
            strategy = Timed(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
            result = strategy.start(grid, ArrayRecord(build().state_dict()), num_rounds=rounds)
            final.update(result.arrays.to_torch_state_dict())

        ray = {"num_cpus": min(os.cpu_count(), clients), "logging_level": "ERROR", "log_to_driver": False}
        resources = {"num_cpus": 1, "num_gpus": 0.0}
        run_simulation(server, client, clients, backend_config={"client_resources": resources, "init_args": ray})
    return seconds, final


# ---- pfl-research --------------------------------------------------------------------------------------------------


def pfl_research(shards, build, lr, batch_size, rounds):
    """pfl's simulation in one process. Chosen: tensors kept in memory, in-place weighting, evaluation off (its first round
    asks for metrics all the same). More processes would need a launcher (torchrun), torch.compile a compiler."""
    with mock.patch.dict(os.environ, PFL_PYTORCH_DEVICE="cpu"):  # otherwise it takes a GPU wherever there is one
        from pfl.aggregate.simulate import SimulatedBackend
        from pfl.aggregate.weighting import WeightByDatapoints
        from pfl.algorithm.base import NNAlgorithmParams
        from pfl.algorithm.federated_averaging import FederatedAveraging
        from pfl.callback.base import TrainingProcessCallback
        from pfl.data.federated_dataset import FederatedDataset
        from pfl.data.pytorch import PyTorchTensorDataset
        from pfl.data.sampling import MinimizeReuseUserSampler
        from pfl.hyperparam.base import NNTrainHyperParams
        from pfl.metrics import Metrics
        from pfl.model.pytorch import PyTorchModel

        asyncio.set_event_loop(asyncio.new_event_loop())  # pfl asks for one; newer Pythons no longer make it on demand
        net, laps = build().train(), []
        net.loss = lambda x, y: F.cross_entropy(net(x), y)
        net.metrics = lambda x, y: {}

        def user(k):
            x, y = shards[k]
            order = torch.randperm(len(y))  # its own data sets keep their order
            return PyTorchTensorDataset((x[order], y[order]), user_id=k)

        class Laps(TrainingProcessCallback):
            def on_train_begin(self, *, model):
                laps.append(time.perf_counter())
                return Metrics()

            def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
                laps.append(time.perf_counter())
                return False, Metrics()

        data = FederatedDataset(user, MinimizeReuseUserSampler(range(len(shards))))
        FederatedAveraging().run(
            NNAlgorithmParams(rounds, evaluation_frequency=10**9, train_cohort_size=len(shards), val_cohort_size=0),
            SimulatedBackend(data, data, [WeightByDatapoints()]),
            PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0)),
            NNTrainHyperParams(local_batch_size=batch_size, local_num_epochs=1, local_learning_rate=lr),
            callbacks=[Laps()], send_metrics_to_platform=False,
        )  # fmt: skip
    # batch statistics are no part of its updates: all clients share the network's own
    return [b - a for a, b in pairwise(laps)], net.state_dict()


# ---- FedLab --------------------------------------------------------------------------------------------------------


def fedlab_serial(shards, build, lr, batch_size, rounds):
    """FedLab's standalone pipeline with its serial trainer. Chosen: batches cut from memory; its trainer and its server
    weight all clients equally unless, as here, the number of samples is sent along."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    from fedlab.contrib.algorithm import SGDSerialClientTrainer, SyncServerHandler
    from fedlab.core.standalone import StandalonePipeline
    from fedlab.utils import Aggregators, Logger, SerializationTool

    root.setLevel(level)  # importing FedLab turns every library's messages on
    root.handlers[:] = handlers

    class Shards:
        def get_dataloader(self, k, batch_size):
            return batches(*shards[k], batch_size)

    class Trainer(SGDSerialClientTrainer):
        def train(self, parameters, loader):
            return [*super().train(parameters, loader), torch.tensor(float(sum(len(y) for _, y in loader)))]

    class Handler(SyncServerHandler):
        def global_update(self, buffer):
            parameters, samples = zip(*buffer, strict=True)
            mean = Aggregators.fedavg_aggregate(list(parameters), torch.stack(samples))
            SerializationTool.deserialize_model(self._model, mean)

    class Pipeline(StandalonePipeline):
        def evaluate(self):
            laps.append(time.perf_counter())

    logger = Logger("fedlab")
    trainer = Trainer(build(), len(shards), logger=logger)
    trainer.setup_dataset(Shards())
    trainer.setup_optim(1, batch_size, lr)
    handler = Handler(build(), rounds, 1.0, logger=logger)
    laps = [time.perf_counter()]
    Pipeline(handler, trainer).main()
    # only parameters are sent: batch statistics are those that the trainer's one network gathered
    state = trainer.model.state_dict() | {name: p.detach() for name, p in handler.model.named_parameters()}
    return [b - a for a, b in pairwise(laps)], state


PEERS = {  # label -> the module that must be importable, the function
    "Flower (Ray)": ("flwr", flower),
    "pfl-research": ("pfl", pfl_research),
    "FedLab": ("fedlab", fedlab_serial),
}


def main():
    import fedlearn as fl

    torch.set_num_threads(1)
    task = fl.tasks.classification("digits", 4)
    shards = [task.epoch(k, torch.arange(task.sizes[k]), None) for k in range(task.clients)]
    for label, (module, function) in PEERS.items():
        if importlib.util.find_spec(module) is None:
            print(f"{label}: not installed")
            continue
        seconds, state = function(shards, lambda: fl.initial_network(fl.methods.fedavg(), task), 0.1, 32, 3)
        net = fl.initial_network(fl.methods.fedavg(), task)
        net.load_state_dict(state)
        print(f"{label}: {', '.join(f'{s:.3f}' for s in seconds)} s, accuracy {task.evaluate(net)['accuracy']:.3f}")


if __name__ == "__main__":
    from peers import main  # noqa: F811  # by this name, and not as __main__, Ray's workers find handed_over

    main()

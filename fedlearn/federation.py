"""The round. Server and client are two objects that exchange ``bytes`` and nothing else.

for each round t:
    clients S_t are drawn
    for each client k of S_t:  message = server.send(t, k);  answer = clients.answer(t, k, message)
                               arrival = server.receive(t, k, answer)
    server.aggregate(t, arrivals)
"""

import platform
import sys
import time
import warnings
from dataclasses import asdict, replace

import torch

from . import checkpoint as checkpoints
from . import engine as engines
from . import local, rng, stacked
from .errors import Diverged, WireError
from .history import History
from .method import Arrival, Context, Downlink, Settings, list_form, whole_number
from .models import multiply_adds, state_of
from .wire import DOWN, UP, Message, assemble, open_envelope, pack, take_apart, unpack


class _Party:
    """What both ends hold before the first byte: method, task and the initial model."""

    def __init__(self, method, task, settings):
        self.method, self.task, self.settings = method, task, settings
        self.net = local.initial_network(method, task)
        self.tensors = state_of(self.net)  # the network's own, not copies
        self.initial = {
            name: t.clone(memory_format=torch.contiguous_format) for name, t in self.tensors.items()
        }
        self.up = method.uplink.schema(self.net, task)
        self.down = method.downlink.schema(self.net, task)
        self._drawn = (None, ())
        for part in (method.uplink, method.server):
            check = getattr(part, "check", None)
            if check:
                check(self.context(1, -1, self.up, {}))

    def context(self, round, client, schema, memory, start=None):
        drawn = self.participants(round)
        return Context(
            self.task,
            round,
            client,
            self.initial,
            start,
            memory,
            schema,
            self.settings,
            drawn,
            self.net,
        )

    def participants(self, round):
        """The clients of this round, in ascending order: both sides draw them from the shared seed."""
        if self._drawn[0] != round:
            count = max(1, int(self.settings.participation * self.task.clients + 0.5))
            order = torch.randperm(
                self.task.clients, generator=rng.generator(self.task.seed, "participants", round)
            )
            self._drawn = round, tuple(sorted(order[:count].tolist()))
        return self._drawn[1]

    def refresh(self, net, round):
        """Some networks have parts that change with the round (``Representative(redraw=True)``)."""
        change = getattr(self.method.model, "refresh", None)
        if change:
            change(net, self.task, round)


class Server(_Party):
    """Holds the global state and whatever the method's server part remembers."""

    def __init__(self, method, task, settings):
        super().__init__(method, task, settings)
        self.memory = {}
        first = getattr(method.server, "initial", None)
        self.state = (
            first(self.context(0, -1, self.up, self.memory)) if first else dict(self.initial)
        )
        self._coded = (None, {}, None, 0)  # round, sections, body, bytes of buffers
        self._buffers = 0

    def send(self, round, client):
        """The message to one client. The state is coded once a round if every client gets the same sections."""
        personal = getattr(self.method.downlink, "personal", False)
        if personal or self._coded[0] != round:
            ctx = self.context(round, client if personal else -1, self.down, self.memory)
            sections = self.method.downlink.encode(self.state, ctx)
            self._coded = (
                round,
                sections,
                assemble(sections, self.down),
                buffer_bytes(sections, self.down),
            )
        _, sections, body, buffers = self._coded
        extra = getattr(self.method.downlink, "extra", None)
        more = extra(self.context(round, client, self.down, self.memory)) if extra else {}
        self._buffers = buffers + buffer_bytes(more, self.down)
        return pack(
            Message(DOWN, round, client),
            self.down,
            assemble(sections | more, self.down) if more else body,
        )

    def down_buffers(self):
        """How many bytes of the last message sent were buffers."""
        return self._buffers

    def receive(self, round, client, data):
        """bytes -> ``Arrival``; ``WireError`` for anything that is not this client's upload of this round."""
        if client not in self.participants(round):
            raise WireError(f"Client {client} was not drawn for round {round}.")
        message = unpack(data, self.up, kind=UP, round=round, client=client)
        if message.samples < 1:
            raise WireError("The upload claims to come from no samples.")
        ctx = replace(
            self.context(round, client, self.up, self.memory, self.state), samples=message.samples
        )
        update = self.method.uplink.decode(message.sections, ctx)
        arrived = getattr(self.method.downlink, "arrived", None)
        if arrived:
            arrived(ctx)
        return Arrival(client, message.samples, update, buffer_bytes(message.sections, self.up))

    def aggregate(self, round, arrivals):
        """The next global state. Without a single arrival it stays as it is, unless the method insists on being asked."""
        if arrivals or getattr(self.method.server, "strict", False):
            arrivals = sorted(
                arrivals, key=lambda a: a.client
            )  # the order of replies must not matter
            ctx = self.context(round, -1, self.up, self.memory, self.state)
            with torch.no_grad():
                self.state = self.method.server.aggregate(self.state, arrivals, ctx)

    def evaluate(self, round=0, kept=dict):
        """Accuracy and loss of the global model after ``round`` on the test set. ``kept()`` gives what clients keep for
        themselves; it is asked only by methods whose final model is made of both."""
        own = getattr(self.method.server, "evaluate", None)
        if own:
            return own(self.state, kept(), self.context(round, -1, self.up, self.memory))
        self.refresh(self.net, round)
        local.load(self.tensors, self.state)
        return self.task.evaluate(self.net)


class Clients(_Party):
    """All clients of one process. They take turns on one network, or train ``together`` so many at a time; what each
    keeps for itself is in ``memories``. A round needs of them ``groups``, ``answers``, ``absent`` and ``kept``, and so may
    be had with clients that live elsewhere (``flower.Remote``)."""

    absent = {}  # client -> why it cannot be asked this round

    def __init__(self, method, task, settings, together=1):
        super().__init__(method, task, settings)
        self.memories, self.together, self.stack = {}, together, None
        self._decoded = (None, None)

    def groups(self, clients):
        """Who trains at once: clients with similar numbers of samples, those with most first."""
        ordered = (
            clients if self.together == 1 else sorted(clients, key=lambda k: -self.task.sizes[k])
        )
        return [ordered[i : i + self.together] for i in range(0, len(ordered), self.together)]

    def kept(self):
        """What each client keeps for itself, by client."""
        return self.memories

    def answer(self, round, client, data):
        """Download, local training, upload: bytes -> bytes."""
        ctx = self._download(round, client, data)
        local.load(self.tensors, ctx.start)
        self.refresh(self.net, round)
        local.train(self.net, self.method, ctx, self.settings)
        ctx.schema = self.up
        return self._upload(round, client, self._encode(self.tensors, ctx))

    def _encode(self, trained, ctx):
        try:
            with torch.no_grad():
                return self.method.uplink.encode(trained, ctx)
        except Diverged:
            return {}

    def answers(self, round, messages):
        """The same for a group of clients, {client: bytes} -> {client: bytes}, all in one stacked network."""
        if len(messages) == 1:
            return {k: self.answer(round, k, data) for k, data in messages.items()}
        messages = {
            k: messages[k] for group in self.groups(list(messages)) for k in group
        }  # most samples first
        contexts = [self._download(round, k, data) for k, data in messages.items()]
        if self.stack is None:
            self.stack = stacked.stack(self.net, self.together)
        net = stacked.narrow(self.stack, 0, len(contexts))
        trained, first = state_of(net), contexts[0].start
        same = all(ctx.start is first for ctx in contexts)
        for name, t in trained.items():
            t.copy_(first[name] if same else torch.stack([ctx.start[name] for ctx in contexts]))
        start, memories = (
            {name: t.clone() for name, t in trained.items()},
            [ctx.memory for ctx in contexts],
        )
        ctx = self.context(round, list(messages), self.up, memories, start)
        self.refresh(net, round)
        local.train_stacked(net, self.method, ctx, self.settings)
        uplink = self.method.uplink
        many = list_form(uplink, "pack", "pack_rows") and list_form(uplink, "encode", "encode_rows")
        with torch.no_grad():
            if many:
                sections = many(trained, ctx)
            else:
                answers = {}
                for row, own in zip(zip(*trained.values(), strict=True), contexts, strict=True):
                    local.load(self.tensors, dict(zip(trained, row, strict=True)))
                    answers[own.client] = self._upload(
                        round, own.client, self._encode(self.tensors, replace(own, schema=self.up))
                    )
                return answers
        return {k: self._upload(round, k, own) for k, own in zip(messages, sections, strict=True)}

    def _download(self, round, client, data):
        _, body, crc = open_envelope(data, self.down, kind=DOWN, round=round, client=client)
        ctx = self.context(round, client, self.down, self.memories.setdefault(client, {}))
        broadcast = (
            type(self.method.downlink).decode is Downlink.decode
        )  # which looks at nothing but the bytes
        anew = (round, len(body), crc) != self._decoded[0] or not broadcast
        take = getattr(self.method.downlink, "take", None)
        sections = take_apart(body, self.down) if anew or take else {}
        if take:
            sections = take(sections, ctx)
        if anew:
            self._decoded = (round, len(body), crc), self.method.downlink.decode(sections, ctx)
        ctx.start = self._decoded[1]
        return ctx

    def _upload(self, round, client, sections):
        return pack(Message(UP, round, client, self.task.sizes[client], sections), self.up)


def run(
    method,
    task,
    rounds=20,
    *,
    participation=1.0,
    epochs=1,
    batch_size=32,
    evaluate_every=1,
    precision="float32",
    engine="sequential",
    memory_limit=None,
    checkpoint=None,
    threads=None,
    progress=None,
):
    """Run ``method`` on ``task`` for that many rounds and return its ``History``.

    ``participation`` is the share of clients drawn each round (C), ``epochs`` the local epochs (E), ``batch_size`` B.
    ``precision`` is the arithmetic of training: "float32", "tf32" or "bf16" (mixed; weights stay float32).
    ``engine`` says how clients train: "sequential", one after another; "stacked", all clients of a round in one step, as
    many at a time as ``memory_limit`` (bytes, by default half of what is free) allows; "auto", whichever is faster here;
    "flower-sim", each in a process of its own, as many at a time as there are CPUs (``fedlearn.flower.simulate``).
    What clients keep between rounds (error feedback, gradient tracking) is not counted in that limit.
    With ``checkpoint`` (a path) every finished round is saved there, and a run that finds the file goes on from it.
    ``threads`` is the number of CPU threads: by default one for networks so small that two would be slower.
    ``progress`` shows a bar: by default where somebody looks (a terminal or a notebook).
    """
    settings = Settings(participation, epochs, batch_size, evaluate_every, precision)
    if engine == "flower-sim":
        from . import flower

        if memory_limit is not None:
            raise ValueError(
                'memory_limit is for stacked training, not for the engine "flower-sim".'
            )
        return flower.simulate(
            flower.Job(method, task, rounds, settings, threads),
            checkpoint=checkpoint,
            progress=progress,
        )
    whole_number("rounds", rounds)
    server = Server(method, task, settings)
    threads = threads or good_threads(server.net, task, batch_size)
    with local.threads(threads, precision):
        chosen = engines.choose(
            engine, method, task, settings, len(server.participants(1)), memory_limit
        )
    clients = Clients(method, task, settings, chosen.together)
    history = History(
        method.name, describe(method, task, settings, threads) | {"engine": asdict(chosen)}
    )
    return train(server, clients, history, rounds, checkpoint, progress)


def train(server, clients, history, rounds, checkpoint=None, progress=None):
    """The rounds that ``history``, or the checkpoint if there is one, does not have yet."""
    if checkpoint is not None:
        checkpoints.resume(checkpoint, history, server, clients)
    with (
        local.threads(history.meta["threads"], server.settings.precision),
        progress_bar(history.method, len(history), rounds, progress) as bar,
    ):
        for t in range(len(history) + 1, rounds + 1):
            history.rows.append(one_round(server, clients, t, last=t == rounds))
            if checkpoint is not None:
                checkpoints.save(checkpoint, history, server, clients)
            bar.update()
            if history.rows[-1]["accuracy"] is not None:
                bar.set_postfix(accuracy=f"{history.rows[-1]['accuracy']:.3f}")
    refused = sum(len(row["refused"]) for row in history.rows)
    if refused:
        warnings.warn(
            f"{refused} uploads of {history.method} were refused or missing; history.rows says whose and why.",
            stacklevel=3,
        )
    history.state = server.state
    return history


def blank_row(round, clients):
    """A row of the history before anything has happened."""
    row = {"round": round, "accuracy": None, "loss": None}
    row |= dict.fromkeys(("bytes_up", "bytes_up_buffers", "bytes_down", "bytes_down_buffers"), 0)
    return row | {"seconds": 0.0, "clients": list(clients), "refused": {}}


def one_round(server, clients, t, last=False):
    """One round, and its row of the history."""
    row, arrivals = blank_row(t, server.participants(t)), []
    groups = clients.groups(
        row["clients"]
    )  # where clients live elsewhere, this waits until they are there
    began = time.perf_counter()
    for group in groups:
        messages = {}
        for k in group:
            messages[k] = server.send(t, k)
            row["bytes_down"] += len(messages[k])
            row["bytes_down_buffers"] += server.down_buffers()
        for k, answer in clients.answers(t, messages).items():
            try:
                if isinstance(answer, WireError):  # there is no answer, only the reason
                    raise answer
                row["bytes_up"] += len(answer)
                arrivals.append(server.receive(t, k, answer))
                row["bytes_up_buffers"] += arrivals[-1].buffers
            except WireError as error:
                row["refused"][k] = str(error)
    row["refused"] |= clients.absent
    server.aggregate(t, arrivals)
    row["seconds"] = time.perf_counter() - began
    if last or t % server.settings.evaluate_every == 0:
        row |= server.evaluate(t, clients.kept)
    return row


def buffer_bytes(sections, schema):
    """How many bytes of a message are buffers (batch statistics) rather than parameters."""
    return sum(len(section) for name, section in sections.items() if name in schema.buffers)


def good_threads(net, task, batch_size):
    """One CPU thread for a small step, all that torch may use for a large one. A rule rather than a timing, so that it
    does not change between two runs: the number of threads changes the last bits of a sum.

    The limit is 50 million multiply-adds a batch (forward), from the table of ``tests/benchmarks``.
    """
    return (
        1
        if multiply_adds(net, task.shape) * min(batch_size, max(task.sizes)) < 50e6
        else torch.get_num_threads()
    )


def refit(method, task, state, images=2000):
    """Accuracy and loss of a state whose batch statistics are measured anew on that many training images, in one batch; all
    learned weights stay as they are. A diagnosis, not a method: it looks at images of all clients."""
    net = local.initial_network(method, task)
    if state.keys() != state_of(net).keys():
        raise ValueError(
            f"refit needs a state of the network that clients of {method.name} train; this is another one's."
        )
    local.load(state_of(net), state)
    for module in net.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0  # forget the old statistics at once
    with torch.no_grad():
        net.train()(task.inputs(task.train[0][:images]))
    return task.evaluate(net)


def describe(method, task, settings, threads):
    """The head of a history: parts, task, settings, versions and hardware."""
    device = task.device
    hardware = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    return {
        "parts": method.parts(),
        "task": task.describe(),
        "settings": asdict(settings),
        "threads": threads,
        "device": f"{device.type} ({hardware})",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def progress_bar(name, done, rounds, show):
    """A text bar, shown on a terminal or in a notebook unless ``show`` says otherwise."""
    from tqdm import tqdm

    if show is None:
        ipython = sys.modules.get("IPython")
        show = sys.stderr.isatty() or hasattr(ipython and ipython.get_ipython(), "kernel")
    return tqdm(initial=done, total=rounds, desc=name, unit="round", disable=not show, leave=False)

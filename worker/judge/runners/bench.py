"""A workbench: one runner with one workload's inputs, parameters and output places in an arena that both sides see.

The judge writes inputs and reads outputs as raw bytes; the runner is told offsets. Candidates and baselines each have
an arena of their own, so that a candidate cannot touch what a baseline is timed on. The benches of one runner may share
an arena, since one workload at a time is run or timed: a `Workshop`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from worker.judge.numerics.case import Case
from worker.judge.reference.problem import Instance
from worker.judge.runners.processes import threads_for
from worker.judge.runners.sessions import Runner
from worker.runner import memory, protocol, values
from worker.runner.mixing import Mix

_ALIGN = 256
_GUARD = 64 << 10
"""Bytes between neighbours, all ones: a read beyond an input yields NaN, and a write there is seen."""


class _Layout:
    """Hands out places in an arena, from `start` on."""

    def __init__(self, start: int) -> None:
        self.end = start + _GUARD
        self.guards: list[tuple[int, int]] = [(start, self.end)]
        """(start, end) of every guard zone, in bytes."""

    def place(self, tensor: torch.Tensor, shift: int = 0) -> values.TensorRef:
        """A place for `tensor`, aligned to 256 bytes and then shifted by `shift` elements."""
        offset = self.end + shift * tensor.element_size()
        ref = values.TensorRef(
            offset, values.dtype_name(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()) or ()
        )
        start = offset + ref.nbytes
        self.end = -(-(start + _GUARD) // _ALIGN) * _ALIGN
        self.guards.append((start, self.end))
        return ref


@dataclass(frozen=True, slots=True)
class Slot:
    """One place for a set of inputs."""

    encoded: list[Any]
    refs: tuple[values.TensorRef, ...]


class _Places:
    """Where everything of a bench lies in an arena."""

    def __init__(self, instance: Instance, like: Case, slots: int, shift: int, start: int = 0) -> None:
        layout = _Layout(start)
        self.state = {name: layout.place(tensor) for name, tensor in instance.model.state_dict().items()}
        self.slots = [_place_slot(layout, like.inputs, shift) for _ in range(slots)]
        self.init_refs: list[tuple[values.TensorRef, torch.Tensor]] = []
        self.init = values.encode(instance.init, lambda tensor: self._place_init(layout, tensor))
        contiguous = torch.contiguous_format
        self.outputs = [
            layout.place(torch.empty_like(output, memory_format=contiguous, device="meta")) for output in like.eager
        ]
        self.guards, self.end = layout.guards, layout.end

    def _place_init(self, layout: _Layout, tensor: torch.Tensor) -> values.TensorRef:
        ref = layout.place(tensor)
        self.init_refs.append((ref, tensor))
        return ref


def _contiguous(case: Case) -> list[int]:
    """The results of forward that are contiguous in the reference, for inputs that all are: a candidate's must be."""
    if not all(tensor.is_contiguous() for tensor in values.tensors_of(case.inputs)):
        return []
    return [place for place in case.results if case.eager[place].is_contiguous()]


class Workshop:
    """An arena for several benches of one runner, of which one at a time is used: as large as the largest needs.

    A bench that is used after another one puts back what it had there: parameters, guard zones, the inputs that were
    written. With an arena for each of the triangle update's seven workloads a candidate's and the baselines' benches
    took 20 GB of an H100 more, by the judge's own estimate.
    """

    def __init__(self, nbytes: int, device: str) -> None:
        self.arena = memory.create(nbytes, device)
        self.nbytes = nbytes
        self.user: Workbench | None = None
        """The bench whose bytes are in the arena."""
        self._opened_as: str | None = None

    @classmethod
    def of(cls, needs: Iterable[tuple[Instance, Case, int]], device: str) -> Workshop:
        """For benches of these instances, cases and slots."""
        return cls(max(_Places(*need, shift=0).end for need in needs), device)

    def open(self, runner: Runner, bench: str, device: str) -> None:
        """Tell the runner where this bench's bytes are."""
        message = {"op": "arena", "workload": bench, "device": device}
        if self._opened_as is not None:
            runner.ask(message | {"arena": {"kind": "same", "workload": self._opened_as}}, timeout_s=60)
            return
        handle, fds = self.arena.handle()
        runner.ask(message | {"arena": handle}, timeout_s=60, fds=fds)
        self._opened_as = bench

    def close(self) -> None:
        """Release the arena on the judge's side."""
        self.user = None
        self.arena.close()


class Workbench:
    """A runner set up for one workload."""

    def __init__(
        self,
        runner: Runner,
        instance: Instance,
        cases: list[Case],
        device: str,
        slots: int,
        *,
        name: str | None = None,
        shift: int = 0,
        workshop: Workshop | None = None,
    ) -> None:
        """`name` sets it apart from other benches of this runner (default: the workload's name); `shift` misaligns
        every input by so many elements; `workshop`: the arena that it shares (default: one of its own)."""
        self.runner, self.instance, self.cases, self.device = runner, instance, cases, device
        self.name = name or instance.workload.name
        needed = _Places(instance, cases[0], slots, shift).end
        self._shares = workshop is not None
        self._workshop = Workshop(needed, device) if workshop is None else workshop
        # At the arena's end: what lies beyond a small workload's bench is as little there as beyond a large one's.
        start = (self._workshop.nbytes - needed) // _GUARD * _GUARD
        places = _Places(instance, cases[0], slots, shift, start)
        self._state, self._slots, self._outputs, self._guards = (
            places.state, places.slots, places.outputs, places.guards)  # fmt: skip
        self._init, self._init_refs = places.init, places.init_refs
        self._contiguous = _contiguous(cases[0])
        self._loaded: list[tuple[Any, ...] | None] = [None] * slots
        self._views = [[self._view(ref) for ref in slot.refs] for slot in self._slots]
        self._take()
        self._workshop.open(runner, self.name, device)

    @property
    def slots(self) -> int:
        return len(self._slots)

    def construct(self, subject: str, timeout_s: float, *, model_of: str | None = None) -> None:
        """Make `subject`'s model for this workload, with the judge's parameters. `model_of`: give the model of the
        bench of this name these parameters instead, and use that."""
        self._take()
        self.runner.ask(
            {
                "op": "construct",
                "subject": subject,
                "workload": self.name,
                "model_of": model_of,
                "init": self._init,
                "state": {name: values.encode_ref(ref) for name, ref in self._state.items()},
                "dtype": None,
                "training": self.instance.model.training,
                "backward": {"parameters": self.instance.parameters, "inputs": self.instance.forward_inputs}
                if self.instance.backward
                else None,
                "contiguous": self._contiguous,
            },
            timeout_s,
        )

    def load_state(self, subject: str, state: Mapping[str, torch.Tensor], timeout_s: float) -> None:
        """Give `subject`'s model these parameters and buffers in place; names as in the reference's state dict."""
        refs = self._put_state(state)
        self.runner.ask({"op": "state", "subject": subject, "workload": self.name, "state": refs}, timeout_s)

    def _put_state(self, state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Put parameters and buffers into the arena; where each lies, as a message says it."""
        self._take()
        for name, tensor in state.items():
            self._view(self._state[name]).copy_(tensor)
        self._settle()
        return {name: values.encode_ref(self._state[name]) for name in state}

    def read_state(self, subject: str, names: Sequence[str], timeout_s: float) -> dict[str, torch.Tensor]:
        """Copies of some of the model's parameters and buffers as they are now."""
        self._take()
        for name in names:
            ref = self._state[name]
            self._bytes[ref.offset : ref.offset + ref.nbytes].fill_(0xFF)
        self._settle()
        refs = {name: values.encode_ref(self._state[name]) for name in names}
        self.runner.ask({"op": "read_state", "subject": subject, "workload": self.name, "state": refs}, timeout_s)
        return {name: self._view(self._state[name]).clone() for name in names}

    def write(self, slot: int, case: int) -> None:
        """Put a case's inputs into a slot."""
        self.put(slot, self.cases[case].inputs)

    def put(self, slot: int, inputs: tuple[Any, ...]) -> None:
        """Put inputs of this bench's shapes and dtypes into a slot."""
        self._take()
        self._fill(slot, inputs)
        self._settle()
        self._loaded[slot] = inputs

    def job(self) -> dict[str, Any]:
        """What a process needs to make the model by itself: arguments, parameters, mode."""
        self._take()
        backward = {"parameters": self.instance.parameters, "inputs": self.instance.forward_inputs}
        return {
            "init": self._init,
            "state": {name: values.encode_ref(ref) for name, ref in self._state.items()},
            "training": self.instance.model.training,
            "backward": backward if self.instance.backward else None,
            "device": self.device,
        }

    def encoded(self, slot: int) -> list[Any]:
        """A slot's arguments as the runner is told of them."""
        self._take()
        return self._slots[slot].encoded

    def slot_tensors(self, slot: int) -> list[torch.Tensor]:
        """The judge's own view of a slot's tensors; what is written there is what the runner sees."""
        self._take()
        return self._views[slot]

    def poison(self) -> None:
        """Fill every output place with NaN patterns (all bits set), so that what is not written shows."""
        self._take()
        for ref in self._outputs:
            self._bytes[ref.offset : ref.offset + ref.nbytes].fill_(0xFF)
        self._settle()

    def run(self, subject: str, slot: int, timeout_s: float, *, then: Sequence[int] = ()) -> tuple[torch.Tensor, ...]:
        """One untimed call on a slot; the outputs as the judge reads them. `then`: other slots, called before the
        first call's outputs are taken."""
        self.poison()
        message = {"op": "run", "subject": subject, "workload": self.name}
        places = [values.encode_ref(ref) for ref in self._outputs]
        after = [self._slots[other].encoded for other in then]
        self.runner.ask(message | {"inputs": self._slots[slot].encoded, "outputs": places, "then": after}, timeout_s)
        return self.read()

    def read(self) -> tuple[torch.Tensor, ...]:
        """A copy of the bytes in the output places, as tensors of the reference's shapes and types."""
        assert self._workshop.user is self, "another bench has written over these outputs"
        return tuple(self._view(ref).clone() for ref in self._outputs)

    def changed_inputs(self, slot: int) -> list[int]:
        """The input tensors whose bytes are no longer what the judge wrote."""
        inputs = self._loaded[slot]
        assert inputs is not None, "nothing was written to this slot"
        assert self._workshop.user is self, "another bench has written over these inputs"
        sides = zip(self._slots[slot].refs, values.tensors_of(inputs), strict=True)
        return [
            index
            for index, (ref, value) in enumerate(sides)
            if not torch.equal(_bytes_of(self._view(ref)), _bytes_of(value))
        ]

    def overrun(self) -> bool:
        """Whether anything was written outside the places handed out."""
        assert self._workshop.user is self, "another bench has written over these guard zones"
        return any(bool((self._bytes[start:end] != 0xFF).any()) for start, end in self._guards)

    def heat(self, subject: str, mix: Mix | None, retained: int = 1) -> None:
        """Hand the runner over to the bell for `subject`. `retained`: results of a chain that are held to its end."""
        self._take()
        message = {"op": "hot", "subject": subject, "workload": self.name, "retained": retained}
        message["mix"] = mix.to_json() if mix else None
        slots = [slot.encoded for slot in self._slots]
        self.runner.ask(message | {"slots": slots, "outputs": [values.encode_ref(ref) for ref in self._outputs]}, 30)
        self.runner.off_the_bell = False

    def cool(self) -> None:
        """Take the runner back from the bell, unless it has left it: 30 s were waited for one whose call had failed."""
        if not self.runner.off_the_bell:
            self.runner.ring(protocol.QUIT, 30)
        self.use_threads()

    def use_threads(self, count: int = 0) -> None:
        """Have the runner compute with so many threads; without a number, with as many as it has by itself."""
        self.runner.ask({"op": "threads", "count": count or threads_for(on_gpu=self.device != "cpu")}, 30)

    def trim(self) -> None:
        """Have the runner give back what it does not use of a GPU's memory: others are timed next."""
        self.runner.ask({"op": "trim"}, 30)

    def close(self) -> None:
        """Release the arena on the judge's side, where it is this bench's alone."""
        self._views.clear()
        if self._workshop.user is self:
            self._workshop.user = None
        if not self._shares:
            self._workshop.close()

    def _take(self) -> None:
        """Have the arena, as it was when this bench had it last."""
        if self._workshop.user is self:
            return
        self._workshop.user = self
        for start, end in self._guards:
            self._bytes[start:end].fill_(0xFF)
        for name, tensor in self.instance.model.state_dict().items():
            self._view(self._state[name]).copy_(tensor)
        for ref, tensor in self._init_refs:
            self._view(ref).copy_(tensor)
        for slot, inputs in enumerate(self._loaded):
            if inputs is not None:
                self._fill(slot, inputs)
        self._settle()  # a busy device copies late, and the runner would make its model of zeros

    def _fill(self, slot: int, inputs: tuple[Any, ...]) -> None:
        for ref, value in zip(self._slots[slot].refs, values.tensors_of(inputs), strict=True):
            _once(self._view(ref)).copy_(_once(value))

    @property
    def _bytes(self) -> torch.Tensor:
        return self._workshop.arena.bytes

    def _view(self, ref: values.TensorRef) -> torch.Tensor:
        return ref.view(self._bytes)

    def _settle(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


def _place_slot(layout: _Layout, inputs: tuple[Any, ...], shift: int) -> Slot:
    refs: list[values.TensorRef] = []

    def place(tensor: torch.Tensor) -> values.TensorRef:
        refs.append(layout.place(tensor, shift))
        return refs[-1]

    encoded = [values.encode(value, place) for value in inputs]
    return Slot(encoded, tuple(refs))


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time: a subject on a workbench."""

    name: str
    bench: Workbench
    subject: str


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """What of an expanded tensor is there once, to be written."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and not stride:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)

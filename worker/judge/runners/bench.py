"""A workbench: one runner with one workload's inputs, parameters and output places in an arena that both sides see.

The judge writes inputs and reads outputs as raw bytes; the runner is told offsets. Candidates and baselines each have
an arena of their own, so that a candidate cannot touch what a baseline is timed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from worker.judge.numerics.truth import Case
from worker.judge.reference.problem import Instance
from worker.judge.runners.sessions import Runner
from worker.runner import memory, protocol, values
from worker.runner.mixing import Mix

_ALIGN = 256
_GUARD = 64 << 10
"""Bytes between neighbours, all ones: a read beyond an input yields NaN, and a write there is seen."""


class _Layout:
    """Hands out places in an arena that does not exist yet."""

    def __init__(self) -> None:
        self.end = _GUARD
        self.guards: list[tuple[int, int]] = [(0, _GUARD)]
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
    ) -> None:
        """`name` sets it apart from other benches of this runner (default: the workload's name); `shift` misaligns
        every input by so many elements."""
        self.runner, self.instance, self.cases, self.device = runner, instance, cases, device
        self.name = name or instance.workload.name
        self._shift = shift
        layout = _Layout()
        self._state = {name: layout.place(tensor) for name, tensor in instance.model.state_dict().items()}
        self._slots = [self._place_slot(layout, cases[0].inputs) for _ in range(slots)]
        self._init_refs: list[tuple[values.TensorRef, torch.Tensor]] = []
        self._init = values.encode(instance.init, lambda tensor: self._place_init(layout, tensor))
        contiguous = [torch.empty_like(output, memory_format=torch.contiguous_format) for output in cases[0].eager]
        self._outputs = [layout.place(output) for output in contiguous]
        self._arena = memory.create(layout.end, device)
        self._guards = layout.guards
        for start, end in self._guards:
            self._arena.bytes[start:end].fill_(0xFF)
        for name, tensor in instance.model.state_dict().items():
            self._view(self._state[name]).copy_(tensor)
        for ref, tensor in self._init_refs:
            self._view(ref).copy_(tensor)
        self._loaded: list[tuple[Any, ...] | None] = [None] * slots
        self._views = [[self._view(ref) for ref in slot.refs] for slot in self._slots]
        self._settle()  # a busy device copies late, and the runner would make its model of zeros
        handle, fds = self._arena.handle()
        runner.ask(
            {"op": "arena", "workload": self.name, "arena": handle, "device": device},
            timeout_s=60,
            fds=fds,
        )

    @property
    def slots(self) -> int:
        return len(self._slots)

    def construct(self, subject: str, timeout_s: float) -> None:
        """Make `subject`'s model for this workload, with the judge's parameters."""
        self.runner.ask(
            {
                "op": "construct",
                "subject": subject,
                "workload": self.name,
                "init": self._init,
                "state": {name: values.encode_ref(ref) for name, ref in self._state.items()},
                "dtype": None,
                "training": self.instance.model.training,
                "backward": {"parameters": self.instance.parameters, "inputs": self.instance.forward_inputs}
                if self.instance.backward
                else None,
            },
            timeout_s,
        )

    def load_state(self, subject: str, state: Mapping[str, torch.Tensor], timeout_s: float) -> None:
        """Give `subject`'s model these parameters and buffers in place; names as in the reference's state dict."""
        for name, tensor in state.items():
            self._view(self._state[name]).copy_(tensor)
        self._settle()
        refs = {name: values.encode_ref(self._state[name]) for name in state}
        self.runner.ask({"op": "state", "subject": subject, "workload": self.name, "state": refs}, timeout_s)

    def read_state(self, subject: str, names: Sequence[str], timeout_s: float) -> dict[str, torch.Tensor]:
        """Copies of some of the model's parameters and buffers as they are now."""
        for name in names:
            ref = self._state[name]
            self._arena.bytes[ref.offset : ref.offset + ref.nbytes].fill_(0xFF)
        self._settle()
        refs = {name: values.encode_ref(self._state[name]) for name in names}
        self.runner.ask({"op": "read_state", "subject": subject, "workload": self.name, "state": refs}, timeout_s)
        return {name: self._view(self._state[name]).clone() for name in names}

    def write(self, slot: int, case: int) -> None:
        """Put a case's inputs into a slot."""
        self.put(slot, self.cases[case].inputs)

    def put(self, slot: int, inputs: tuple[Any, ...]) -> None:
        """Put inputs of this bench's shapes and dtypes into a slot."""
        for ref, value in zip(self._slots[slot].refs, values.tensors_of(inputs), strict=True):
            self._view(ref).copy_(value)
        self._settle()
        self._loaded[slot] = inputs

    def job(self) -> dict[str, Any]:
        """What a process needs to make the model by itself: arguments, parameters, mode."""
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
        return self._slots[slot].encoded

    def slot_tensors(self, slot: int) -> list[torch.Tensor]:
        """The judge's own view of a slot's tensors; what is written there is what the runner sees."""
        return self._views[slot]

    def poison(self) -> None:
        """Fill every output place with NaN patterns (all bits set), so that what is not written shows."""
        for ref in self._outputs:
            self._arena.bytes[ref.offset : ref.offset + ref.nbytes].fill_(0xFF)
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
        return tuple(self._view(ref).clone() for ref in self._outputs)

    def changed_inputs(self, slot: int) -> list[int]:
        """The input tensors whose bytes are no longer what the judge wrote."""
        inputs = self._loaded[slot]
        assert inputs is not None, "nothing was written to this slot"
        sides = zip(self._slots[slot].refs, values.tensors_of(inputs), strict=True)
        return [
            index
            for index, (ref, value) in enumerate(sides)
            if not torch.equal(_bytes_of(self._view(ref)), _bytes_of(value))
        ]

    def overrun(self) -> bool:
        """Whether anything was written outside the places handed out."""
        return any(bool((self._arena.bytes[start:end] != 0xFF).any()) for start, end in self._guards)

    def heat(self, subject: str, mix: Mix | None, retained: int = 1) -> None:
        """Hand the runner over to the bell for `subject`. `retained`: results of a chain that are held to its end."""
        message = {"op": "hot", "subject": subject, "workload": self.name, "retained": retained}
        message["mix"] = mix.to_json() if mix else None
        slots = [slot.encoded for slot in self._slots]
        self.runner.ask(message | {"slots": slots, "outputs": [values.encode_ref(ref) for ref in self._outputs]}, 30)

    def cool(self) -> None:
        """Take the runner back from the bell."""
        self.runner.ring(protocol.QUIT, 30)
        self.runner.ask({"op": "threads", "count": torch.get_num_threads()}, 30)

    def trim(self) -> None:
        """Have the runner give back what it does not use of a GPU's memory: others are timed next."""
        self.runner.ask({"op": "trim"}, 30)

    def close(self) -> None:
        """Release the arena on the judge's side."""
        self._views.clear()
        self._arena.close()

    def _place_slot(self, layout: _Layout, inputs: tuple[Any, ...]) -> Slot:
        refs: list[values.TensorRef] = []

        def place(tensor: torch.Tensor) -> values.TensorRef:
            refs.append(layout.place(tensor, self._shift))
            return refs[-1]

        encoded = [values.encode(value, place) for value in inputs]
        return Slot(encoded, tuple(refs))

    def _place_init(self, layout: _Layout, tensor: torch.Tensor) -> values.TensorRef:
        ref = layout.place(tensor)
        self._init_refs.append((ref, tensor))
        return ref

    def _view(self, ref: values.TensorRef) -> torch.Tensor:
        return ref.view(self._arena.bytes)

    def _settle(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time: a subject on a workbench."""

    name: str
    bench: Workbench
    subject: str


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)

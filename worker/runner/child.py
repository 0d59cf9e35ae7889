"""What runs inside the sandbox beside the candidate: load it, call it, ring the bell. It reports no number that counts.

Everything in this process may be rewritten by the candidate. So nothing here is trusted: the judge owns inputs,
expected values and the clock; it sees one-byte answers, sizes that it checks, and raw bytes in the arena.

Control messages: `arena`, `load`, `construct`, `state`, `run`, `hot` and a few more. After `hot` the bell socket takes
over until QUIT: CALL a model on a slot's inputs, KEEP a result (copy it into the arena), CHAIN n steps on n slots, each
an eviction of the L2 cache and, from a first one on, a call, NULL_CHAIN the same without the calls.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import shutil
import socket
import sys
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from worker.runner import (
    apart,
    compiled,
    eviction,
    examine,
    extensions,
    hygiene,
    kernel_list,
    memory,
    mixing,
    protocol,
    provenance,
    settings,
    triton_interpret,
    triton_record,
    turns,
    usage,
    values,
)
from worker.runner import kernelwright as loader
from worker.runner.messages import ContractError, made_of
from worker.runner.step import Step

_MAX_TRACE = 6000
_CANDIDATE = "ModelNew"
_SYNCHRONIZE = torch.cuda.synchronize  # taken before a candidate is loaded, which may patch the name


class Subject:
    """One loaded source and the models made from it, one per workload."""

    def __init__(self, name: str, source: str, class_name: str, compile_mode: str | None, *, tf32: bool) -> None:
        """Executes the source. Raises ContractError, and whatever the source raises."""
        self._name, self._source, self._class_name = name, source, class_name
        self.judged = class_name == _CANDIDATE
        self.compile_mode, self.tf32 = compile_mode, tf32
        self.models: dict[str, torch.nn.Module] = {}
        self.calls: dict[str, Callable[..., Any]] = {}
        """What one call is: the model, its compiled form, or forward and backward of either."""
        self.contiguous: dict[str, tuple[int, ...]] = {}
        """The outputs of each workload that must be contiguous: a candidate's. Whoever returns the transposed view of a
        copy has left the work to its reader, or breaks it (`view`)."""
        self._factory = self._execute(f"{name}_module", source)

    def factory(self) -> Callable[..., Any]:
        """The class to make the next workload's model of. Where it will be compiled, a class of its own: torch.compile
        remembers sizes by the line and by what the file holds, and would take the second workload's for one that
        varies."""
        number = len(self.models)
        if self.compile_mode is None:
            return self._factory
        return self._execute(f"{self._name}_module_{number}", f"{self._source}\n# Workload {number}\n")

    def _execute(self, module_name: str, source: str) -> Callable[..., Any]:
        module = _module_from(source, module_name)
        if not hasattr(module, self._class_name):
            raise ContractError(f"the file defines no class {self._class_name}")
        found: Callable[..., Any] = getattr(module, self._class_name)
        return found


_SPIN_S = 0.02
"""After a command the next one is awaited without sleeping for so long."""


class _Slots:
    """Inputs of the calls of a chain, and how fresh values are mixed into them."""

    def __init__(self, inputs: list[tuple[Any, ...]], mix: mixing.Mix | None, retained: int) -> None:
        self.inputs, self.retained = inputs, retained
        device = next((tensor.device for tensor in values.tensors_of(inputs[0])), torch.device("cpu"))
        self._mixer = mixing.Mixer(mix, str(device)) if mix is not None else None
        self._tensors = [values.tensors_of(arguments) for arguments in inputs]

    def at(self, step: int) -> tuple[Any, ...]:
        """The inputs of one call of a chain, which goes round the slots."""
        return self.inputs[step % len(self.inputs)]

    def mix(self, step: int, nonce: int) -> None:
        """Write the values that belong to one call of a chain."""
        if self._mixer is not None:
            self._mixer.apply(self._tensors[step % len(self._tensors)], mixing.step_number(nonce, step))


class Session:
    """State of one runner: arena, subjects and the last outputs."""

    def __init__(self, control: socket.socket, bell: socket.socket) -> None:
        self.control, self.bell = control, bell
        self._build = functools.partial(_built, control)
        loader._set_builder(self._build)
        sys.modules["kernelwright"] = loader
        self.device = "cpu"
        self.arenas: dict[str, memory.Arena] = {}
        self.subjects: dict[str, Subject] = {}
        self.evictor: eviction.Evictor | None = None
        self.cleanup = contextlib.ExitStack()
        self.recorded_launches: triton_record.Record | None = None

    # --- control messages -------------------------------------------------------------------------------------------

    def arena_(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Open the arena of one workload, or use another one's."""
        self.device, handle = message["device"], message["arena"]
        shared = self.arenas[handle["workload"]] if handle["kind"] == "same" else memory.open_arena(handle, fds)
        self.arenas[message["workload"]] = shared
        return {}

    def evict(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Open the buffer for evicting the L2 cache."""
        self.eviction_arena = memory.open_arena(message["arena"], fds)
        self.evictor = eviction.Evictor(self.eviction_arena.bytes)
        return {}

    def load(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Execute a source as a module of its own."""
        name, tf32 = message["subject"], message.get("tf32", False)
        if extensions.wanted(message["source"]):
            extensions.install(self._build)
        if message["compile"] is not None:
            apart.write_apart()
        if message.get("turns"):
            turns.take_turns(self.control)
        self.subjects[name] = Subject(name, message["source"], message["class"], message["compile"], tf32=tf32)
        return {}

    def construct(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Make the model of one workload, or take that of the one that is named, and give it the judge's parameters."""
        subject = self.subjects[message["subject"]]
        shared = self.arenas[message["workload"]].bytes
        taken = message.get("model_of")
        model = (
            subject.models[taken]
            if taken is not None
            else made_of(self, subject.factory(), values.decode(message["init"], shared))
        )
        state = {name: values.decode(ref, shared) for name, ref in message["state"].items()}
        dtype = values.dtype_of(message["dtype"]) if message["dtype"] else None
        model = model.to(dtype=dtype) if dtype is not None else model
        model.load_state_dict({name: tensor.clone() for name, tensor in state.items()}, strict=True)
        model.train(message["training"])
        trained = message["backward"]
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trained is not None and name in trained["parameters"])
        call: Callable[..., Any] = model
        if subject.compile_mode is not None:
            mode = None if subject.compile_mode == "default" else subject.compile_mode
            call = torch.compile(model, mode=mode)
        if subject.tf32:
            call = _with_tf32(call)
        if trained is not None:
            call = Step(model, call, tuple(trained["parameters"]), trained["inputs"])
        subject.models[message["workload"]] = model
        subject.calls[message["workload"]] = call
        subject.contiguous[message["workload"]] = tuple(message["contiguous"]) if subject.judged else ()
        return {}

    def state(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Give a model new parameters in place, as an optimizer's step or a checkpoint does."""
        model = self.subjects[message["subject"]].models[message["workload"]]
        shared = self.arenas[message["workload"]].bytes
        known = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        with torch.no_grad():
            for name, ref in message["state"].items():
                known[name].copy_(values.decode(ref, shared))
        self._synchronize()
        return {}

    def read_state(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Copy some of a model's parameters and buffers into the arena."""
        model = self.subjects[message["subject"]].models[message["workload"]]
        shared = self.arenas[message["workload"]].bytes
        known = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        with torch.no_grad():
            for name, ref in message["state"].items():
                values.decode(ref, shared).copy_(known[name])
        self._synchronize()
        return {}

    def run(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """One call, untimed: outputs go into the arena at the places given. With `then` (lists of other inputs)
        more calls are made before the first one's outputs are stored: a result must outlive the next calls; with a
        backward their forwards also come between the first one's forward and its backward."""
        subject = self.subjects[message["subject"]]
        call = subject.calls[message["workload"]]
        shared = self.arenas[message["workload"]].bytes
        places = [values.decode(place, shared) for place in message["outputs"]]
        self._poison(places)
        with torch.no_grad():
            first = values.decode(message["inputs"], shared)
            later = [values.decode(others, shared) for others in message.get("then", ())]
            result = call.interleaved(first, later) if later and isinstance(call, Step) else call(*first)
            for others in later:
                call(*others)
        if self.recorded_launches is None:  # else no kernel ran: even a shape may be whatever memory held
            _store(result, places, subject.contiguous[message["workload"]])
        self._synchronize()
        return {}

    def interpret(self, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Run Triton kernels in the interpreter from now on: values without a GPU."""
        triton_interpret.use_interpreter()
        return {}

    def record(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """From now on compile Triton launches for `arch` and run none of them: builds without a GPU."""
        self.recorded_launches = self.cleanup.enter_context(triton_record.recording(message["arch"]))
        return {}

    def recorded(self, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """What was compiled since `record`."""
        assert self.recorded_launches is not None, "nothing was recorded"
        return self.recorded_launches.report()

    def trim(self, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Give the device's memory back that is free here: the results of a workload's chains are 9 GB of an H200."""
        torch.cuda.empty_cache()
        return {}

    def hot(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Serve bell commands for one subject and workload until QUIT."""
        _acknowledge(self.control, {})
        hygiene.poison_new_host_memory(on=False)
        subject = self.subjects[message["subject"]]
        call = subject.calls[message["workload"]]
        shared = self.arenas[message["workload"]].bytes
        slots = [tuple(values.decode(item, shared)) for item in message["slots"]]
        mix = mixing.Mix(**message["mix"]) if message["mix"] else None
        gc.disable()  # as timeit does: a collection in the middle of a sample is nobody's kernel
        with torch.no_grad(), _without_compiling() if subject.compile_mode else contextlib.nullcontext():
            self._serve_bell(
                call,
                _Slots(slots, mix, message["retained"]),
                [values.decode(place, shared) for place in message["outputs"]],
                subject.contiguous[message["workload"]],
            )
        return {}

    # --- the bell ---------------------------------------------------------------------------------------------------

    def _serve_bell(
        self, call: Callable[..., Any], slots: _Slots, outputs: list[torch.Tensor], contiguous: tuple[int, ...]
    ) -> None:
        receive, send, size, on_device = self.bell.recv, self.bell.send, protocol.BELL.size, self.device != "cpu"
        spin_s = _SPIN_S if on_device else 0.0  # on a CPU the spinning would take a core from the next call
        synchronize = _SYNCHRONIZE
        results: list[Any] = []
        while True:
            data = protocol.spin(self.bell, size, spin_s)
            data = receive(size) if data is None else data
            if not data:
                os._exit(0)
            command, flags, count, lead, first, calls, number = protocol.BELL.unpack(data)
            if command == protocol.CALL:
                if not flags & protocol.RETAIN:
                    results.clear()  # a caller that drops its result lets the allocator reuse it, as in a training loop
                results.append(call(*slots.inputs[number]))
            elif command == protocol.CHAIN:
                results.clear()
                self._chain(call, slots, results, flags, count, lead, range(first, first + calls), number)
            elif command == protocol.NULL_CHAIN:
                self._null_chain(slots, flags, count, lead, number)
            elif command == protocol.KEEP:
                _store(results[number], outputs, contiguous)
            if on_device:
                synchronize()
            send(protocol.OK)
            if command == protocol.QUIT:
                return

    def _chain(
        self,
        call: Callable[..., Any],
        slots: _Slots,
        results: list[Any],
        flags: int,
        count: int,
        lead: int,
        called: range,
        nonce: int,
    ) -> None:
        assert self.evictor is not None, "a chain needs the eviction buffer"
        self.evictor.lead_in(nonce, lead)
        for step in range(count):
            self.evictor.step(nonce, step)
            if flags & protocol.MIX:
                slots.mix(step, nonce)
            if step not in called:
                continue
            place = (step - called.start) % slots.retained if flags & protocol.RETAIN else 0
            results[place : place + 1] = []  # dropped before the call, so that the allocator may use it again
            results.insert(place, call(*slots.at(step)))

    def _null_chain(self, slots: _Slots, flags: int, count: int, lead: int, nonce: int) -> None:
        if not count + lead:
            return  # a round trip of the bell, on a CPU
        assert self.evictor is not None, "a chain needs the eviction buffer"
        self.evictor.lead_in(nonce, lead)
        for step in range(count):
            self.evictor.step(nonce, step)
            if flags & protocol.MIX:
                slots.mix(step, nonce)

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _poison(self, places: list[torch.Tensor]) -> None:
        if self.device == "cpu":
            hygiene.poison_new_host_memory(on=True)
        else:
            hygiene.poison_free_device_memory(max((place.nbytes for place in places), default=0))

    def _synchronize(self) -> None:
        if self.device != "cpu":
            _SYNCHRONIZE()


def _without_compiling() -> contextlib.AbstractContextManager[Any]:
    """What has not been compiled yet runs in eager mode: a baseline whose sizes depend on values would otherwise
    compile while it is timed (five minutes in a row, with the device held, for posting lists of other lengths)."""
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("eager_on_recompile")
    return stance


def _with_tf32(call: Callable[..., Any]) -> Callable[..., Any]:
    """`call` with TF32 in matrix products and convolutions: for baselines of problems that allow it."""

    def allowed(*arguments: Any) -> Any:
        before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        try:
            return call(*arguments)
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before

    return allowed


def _store(result: Any, targets: list[torch.Tensor], contiguous: tuple[int, ...]) -> None:
    """Copy a model's outputs into the arena. Raises ContractError."""
    tensors = list(result) if isinstance(result, tuple | list) else [result]
    if len(tensors) != len(targets):
        raise ContractError(f"{len(tensors)} outputs; the reference returns {len(targets)}")
    for index, (tensor, target) in enumerate(zip(tensors, targets, strict=True)):
        _check_output(index, tensor, target)
        if index in contiguous and not tensor.is_contiguous():
            raise ContractError(
                f"output {index} has strides {tensor.stride()}; the reference's is contiguous, so return what "
                ".contiguous() gives"
            )
        target.copy_(tensor)


def _check_output(index: int, tensor: Any, target: torch.Tensor) -> None:
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        raise ContractError(f"output {index} is a {type(tensor).__name__}, not a torch.Tensor")
    if tensor.shape != target.shape:
        raise ContractError(f"output {index} has shape {tuple(tensor.shape)}; the reference's is {tuple(target.shape)}")
    if tensor.dtype != target.dtype:
        raise ContractError(f"output {index} is {tensor.dtype}; the reference's is {target.dtype}")
    if tensor.device.type != target.device.type:
        raise ContractError(f"output {index} is on {tensor.device}; the reference's is on {target.device}")


def _module_from(source: str, name: str) -> types.ModuleType:
    """Execute `source` from a real file: torch, triton and inspect want to read sources back."""
    path = Path.cwd() / f"{name}.py"
    path.write_text(source)
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def _built(control: socket.socket, language: str, source: str, flags: Sequence[str]) -> str:
    """The path of what the judge's build broker builds outside the sandbox. Raises BuildError."""
    protocol.send_message(control, {"build": language, "source": source, "flags": list(flags)})
    answer, fds = protocol.receive_message(control)
    if "error" in answer:
        raise loader.BuildError(answer["error"])
    return str(_received(str(answer["name"]), fds[0]))


def _received(name: str, descriptor: int) -> Path:
    """An artefact, copied from the judge's descriptor into our own scratch, where dlopen may open it by a path.

    Into a new file: one that was built twice would be written over what is mapped, and the process would die of it.
    """
    path = Path.cwd() / f"{descriptor}-{name}"
    path.unlink(missing_ok=True)
    with os.fdopen(descriptor, "rb") as artefact, path.open("wb") as copy:
        shutil.copyfileobj(artefact, copy)
    return path


def _acknowledge(control: socket.socket, answer: dict[str, Any]) -> None:
    protocol.send_message(control, {"done": answer})


def _report_failure(control: socket.socket, failure: BaseException) -> None:
    text = "".join(traceback.format_exception(failure))[-_MAX_TRACE:]
    kinds = [kind.__name__ for kind in type(failure).__mro__]
    protocol.send_message(control, {"failed": kinds, "message": str(failure)[:2000], "trace": text})


def serve(control: socket.socket, bell: socket.socket) -> int:
    """Serve the judge until it hangs up. Returns the exit code."""
    session = Session(control, bell)
    handlers: dict[str, Callable[[dict[str, Any], list[int]], dict[str, Any]]] = {
        "arena": session.arena_,
        "evict": session.evict,
        "load": session.load,
        "construct": session.construct,
        "state": session.state,
        "read_state": session.read_state,
        "run": session.run,
        "interpret": session.interpret,
        "record": session.record,
        "recorded": session.recorded,
        "hot": session.hot,
        "trim": session.trim,
    }
    parts = (compiled, examine, kernel_list, provenance, settings, usage)
    others = {name: handler for part in parts for name, handler in part.HANDLERS.items()}
    handlers |= {name: functools.partial(handler, session) for name, handler in others.items()}
    with contextlib.suppress(protocol.PeerClosed):
        while True:
            message, fds = protocol.receive_message(control)
            if message["op"] == "threads":
                torch.set_num_threads(message["count"])
                _acknowledge(control, {})
                continue
            in_bell = message["op"] == "hot"
            try:
                answer = handlers[message["op"]](message, fds)
            except BaseException as failure:  # noqa: BLE001 - whatever hostile code raises becomes a message
                _report_failure(control, failure)
                if in_bell:
                    bell.send(protocol.FAILED)
                continue
            if not in_bell:
                _acknowledge(control, answer)
    return 0

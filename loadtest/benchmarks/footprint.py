"""The default box with nothing to do: memory, CPU, and how long it took to be there."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, ClassVar

from lab.running_box import RunningBox
from loadtest.benchmark import Benchmark, Figure, Run, Say
from loadtest.memory import MB, is_python, process_memory, sum_of
from loadtest.observation import Observer


@dataclass(frozen=True)
class Footprint(Benchmark):
    name: ClassVar[str] = "footprint"
    title: ClassVar[str] = "The default box, idle: all its Python processes (ZooKeeper's JVM apart), after a moment to settle."
    figures: ClassVar[tuple[Figure, ...]] = (
        Figure("PSS without arenas", "MB", at_most=200),
        Figure("idle CPU", "% of a core", at_most=2),
        Figure("ready after", "s", at_most=5),
        Figure("PSS of arenas", "MB"),
        Figure("PSS of other shared memory", "MB"),
        Figure("PSS of the JVM", "MB"),
        Figure("idle CPU of the JVM", "% of a core"),
    )
    short: ClassVar[dict[str, Any]] = {"settle_seconds": 2.0, "idle_seconds": 5.0}

    settle_seconds: float = 5.0
    idle_seconds: float = 30.0

    def run(self, box: RunningBox, say: Say) -> Run:
        time.sleep(self.settle_seconds)
        pids = box.pids()
        say(f"watching {len(pids)} idle processes for {self.idle_seconds:g} s")
        observer = Observer(pids)
        time.sleep(self.idle_seconds)
        observation = observer.finish()
        python = [name for name, pid in pids.items() if is_python(pid)]
        memory = {name: process_memory(pid) for name, pid in pids.items()}
        ours = sum_of(memory[name] for name in python)
        others = sum_of(memory[name] for name in pids if name not in python)
        python_cpu = sum(observation.box[name] for name in python)
        figures = {
            "PSS without arenas": ours.without_arenas / MB,
            "idle CPU": 100 * python_cpu / observation.seconds,
            "ready after": box.ready_seconds,
            "PSS of arenas": ours.arenas / MB,
            "PSS of other shared memory": ours.other_shared / MB,
            "PSS of the JVM": others.total / MB,
            "idle CPU of the JVM": 100 * (sum(observation.box.values()) - python_cpu) / observation.seconds,
        }
        largest = sorted(python, key=lambda name: -memory[name].without_arenas)
        sizes = ", ".join(f"{name} {memory[name].without_arenas / MB:.1f}" for name in largest)
        busiest = sorted(python, key=lambda name: -observation.box[name])[:5]
        cpu = ", ".join(f"{name} {100 * observation.box[name] / observation.seconds:.2f}" for name in busiest)
        return Run(figures, observation, [f"PSS without arenas by process (MB): {sizes}", f"idle CPU (% of a core): {cpu}"])

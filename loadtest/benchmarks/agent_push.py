"""Records of agents by their own protocols, each chunk or window acknowledged when its records are stored: Fluent's forward protocol, Lumberjack.

Everything else is as in `http_push`. Weak spot: as there; the generator is Python too, and compresses nothing while the clock runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lab.running_box import Address, RunningBox, listener
from loadtest.benchmark import Figure
from loadtest.benchmarks.http_push import HttpPush, figures_of


@dataclass(frozen=True)
class AgentPush(HttpPush):
    generator: ClassVar[Path] = Path(__file__).parent.parent / "generators" / "agent_sender.py"
    listener: ClassVar[str]
    """The protocol of the listener."""

    def box_arguments(self, directory: Path) -> Mapping[str, Any]:
        return {"senders": {"listener": [listener("agents", self.listener)]}}

    def address(self, box: RunningBox) -> Address:
        return box.sender("agents")


@dataclass(frozen=True)
class FluentForward(AgentPush):
    name: ClassVar[str] = "fluent_forward"
    title: ClassVar[str] = "PackedForward chunks of 500 records of 230 B over 4 connections, 4 under way on each, answered when their records are stored."
    figures: ClassVar[tuple[Figure, ...]] = figures_of(100_000)
    listener: ClassVar[str] = "fluent"
    form: ClassVar[str] = "packed"


@dataclass(frozen=True)
class Lumberjack(AgentPush):
    name: ClassVar[str] = "lumberjack"
    title: ClassVar[str] = "Compressed Lumberjack windows of 500 events of 300 B over 4 connections, 2 under way on each, acknowledged when they are stored."
    figures: ClassVar[tuple[Figure, ...]] = figures_of()
    listener: ClassVar[str] = "lumberjack"
    form: ClassVar[str] = "beats"

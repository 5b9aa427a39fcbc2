"""What a load needs in load generators, cores, memory, network and time: arithmetic over costs that were measured.

``python -m tests.benchmarks.plan_scale --requests-per-second 5000 --ranks 64`` prints a table and where the first limit
lies. Every cost is an option: measure your own machine with ``bench_sending`` and ``bench_prepare``.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

KIB = 1024
USED_OF_A_CORE = 0.7
"""A sender whose event loop is busier than this is late."""


@dataclass(frozen=True)
class Load:
    """``ports`` are inference URLs; tokens are of one request."""

    requests_per_second: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    seconds_in_flight: float
    prefixes: int
    ranks: int
    ports: int


@dataclass(frozen=True)
class Costs:
    """Measured on one core of one machine (docs/benchmarks.md, docs/scale.md)."""

    request_ms: float
    prompt_ms_per_1000_tokens: float
    chunk_us: float
    bytes_a_token: float
    bytes_a_chunk: float
    sender_mb: float
    kb_a_request: float
    prepare_tokens_per_second: float
    cores_a_machine: int
    network_gbit: float
    coordinator_gb: float
    shared_gbit: float
    port_requests: float


@dataclass(frozen=True)
class Need:
    """What is needed. ``limits`` are fractions of what more load generators do not add to."""

    senders: int
    machines: int
    in_flight: int
    memory_gb: float
    gbit_up: float
    gbit_down: float
    data_gb: float
    sending_hours: float
    prepare_hours_one_core: float
    prepare_minutes_all_cores: float
    warm_up_prompts: int
    limits: dict[str, float]


def need(load: Load, costs: Costs) -> Need:
    """Whole senders and machines; one core a sender."""
    seconds_a_request = (
        costs.request_ms / 1000
        + load.prompt_tokens / 1000 * costs.prompt_ms_per_1000_tokens / 1000
        + load.output_tokens * costs.chunk_us / 1e6
    )
    cores = load.requests_per_second * seconds_a_request
    senders = max(1, math.ceil(cores / USED_OF_A_CORE))
    gbit_up = load.requests_per_second * load.prompt_tokens * costs.bytes_a_token * 8 / 1e9
    gbit_down = load.requests_per_second * load.output_tokens * costs.bytes_a_chunk * 8 / 1e9
    by_cores = senders / costs.cores_a_machine
    by_network = max(gbit_up, gbit_down) / (USED_OF_A_CORE * costs.network_gbit)
    machines = max(1, math.ceil(max(by_cores, by_network)))
    all_tokens = load.requests * load.prompt_tokens
    one_core = all_tokens / costs.prepare_tokens_per_second
    memory_mb = senders * costs.sender_mb + load.requests * costs.kb_a_request / KIB
    records_gb = load.requests * costs.kb_a_request / KIB / KIB
    limits = {
        f"memory of the coordinator, which judges all records ({records_gb:.0f} GB)": records_gb / costs.coordinator_gb,
        f"reading the shared directory ({gbit_up:.2f} Gbit/s)": gbit_up / costs.shared_gbit,
        "one port (each takes its part of the requests)": load.requests_per_second / load.ports / costs.port_requests,
    }
    return Need(
        senders=senders,
        machines=machines,
        in_flight=math.ceil(load.requests_per_second * load.seconds_in_flight),
        memory_gb=memory_mb / KIB,
        gbit_up=gbit_up,
        gbit_down=gbit_down,
        data_gb=all_tokens * costs.bytes_a_token / 1e9,
        sending_hours=load.requests / load.requests_per_second / 3600,
        prepare_hours_one_core=one_core / 3600,
        prepare_minutes_all_cores=one_core / (machines * costs.cores_a_machine) / 60,
        warm_up_prompts=load.prefixes * load.ranks,
        limits=limits,
    )


def table(load: Load, costs: Costs) -> str:
    """The need as a Markdown table."""
    found = need(load, costs)
    rows = [
        ("load generators (machines)", f"{found.machines}, with {costs.cores_a_machine} cores each"),
        ("senders, a core each", f"{found.senders}, {load.requests_per_second / found.senders:.0f} requests/s each"),
        ("requests in flight (aisbench.model.batch_size)", f"{found.in_flight:,}"),
        ("memory of all senders and records", f"{found.memory_gb:.0f} GB"),
        ("network up / down", f"{found.gbit_up:.2f} / {found.gbit_down:.2f} Gbit/s"),
        ("data set on the shared directory", f"{found.data_gb:,.0f} GB"),
        ("time to send", f"{found.sending_hours:.2f} h"),
        ("time to prepare, one core", f"{found.prepare_hours_one_core:.1f} h"),
        ("time to prepare, all these cores", f"{found.prepare_minutes_all_cores:.0f} min"),
        ("warm-up prompts, twice each", f"{found.warm_up_prompts:,} ({load.ranks} ranks, {load.ports} ports)"),
        *((name, f"{100 * used:.0f}% used") for name, used in found.limits.items()),
        ("first limit", max(found.limits, key=lambda name: found.limits[name])),
    ]
    return "\n".join(["| what | needed |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options = {
        "requests_per_second": (5000.0, "requests a second that are asked for"),
        "requests": (10_000_000, "requests of the data set"),
        "prompt_tokens": (4096, "tokens of a prompt"),
        "output_tokens": (64, "tokens of an answer, a chunk each"),
        "seconds_in_flight": (4.0, "seconds from a request to the end of its answer"),
        "prefixes": (1000, "shared prefixes"),
        "ranks": (64, "data-parallel ranks"),
        "ports": (8, "inference URLs"),
        "request_ms": (1.2, "processor time of a short request in a sender"),
        "prompt_ms_per_1000_tokens": (0.1, "more of it for each 1,000 tokens of a prompt"),
        "chunk_us": (28.0, "processor time of a chunk of an answer"),
        "bytes_a_token": (4.6, "bytes of a prompt's token, in files and on the wire"),
        "bytes_a_chunk": (250.0, "bytes of a chunk"),
        "sender_mb": (400.0, "memory of a sender"),
        "kb_a_request": (5.2, "memory of a request's records in the coordinator, kB; 2.1 with one output token"),
        "prepare_tokens_per_second": (1.25e7, "tokens that prepare makes a second on one core"),
        "cores_a_machine": (16, "cores of a load generator's machine"),
        "network_gbit": (10.0, "network of a load generator's machine, Gbit/s"),
        "coordinator_gb": (64.0, "memory of the coordinator's machine, GB"),
        "shared_gbit": (10.0, "what the shared directory delivers, Gbit/s"),
        "port_requests": (1000.0, "requests a second that one inference URL takes"),
    }
    for name, (default, text) in options.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, metavar="N", help=f"{text} ({default:g})")
    values = vars(parser.parse_args())

    def chosen(names: dict[str, object]) -> dict[str, object]:
        return {name: values[name] for name in names}

    load = Load(**chosen(Load.__dataclass_fields__))  # type: ignore[arg-type]
    costs = Costs(**chosen(Costs.__dataclass_fields__))  # type: ignore[arg-type]
    print(table(load, costs))


if __name__ == "__main__":
    main()

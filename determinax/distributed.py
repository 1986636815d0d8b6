"""Many processes: this one joins the others, and what they compute together is printed by the first.

```python
if dx.distributed.is_first():    # also true where there is one process only
    print(dx.log_abs_det(A, dx.MonteCarlo(1000), key=key))
```
"""

import contextlib
import ipaddress
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from determinax._checks import whole_number

# seconds of silence after which a process counts as dead, for all the others
HEARTBEAT = 10
# seconds until it is said who is waited for, and that are waited at most
_PATIENT, _WAITING = 3.0, 60
# the exit code of a process that has waited in vain: that of bad input
_ALONE = 2
# ports that Slurm's and Open MPI's jobs are spread over, by their numbers, as JAX does
_PORTS = 2**12


class PeerLost(RuntimeError):
    """Another process of the run has died or stopped; nothing more can be computed together."""


class Different(ValueError):
    """The processes of a run were given different operators or settings; all of them are told."""


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_timeout_seconds: int = HEARTBEAT,
    initialization_timeout: int = _WAITING,
    **options: Any,
) -> None:
    """Join the other processes of a run, by `jax.distributed.initialize`.

    **Arguments:**

    - `coordinator_address`, `num_processes`, `process_id`: "host:port" of process 0, how many there are,
        and which one this is. All three are found where Slurm or Open MPI started the processes. Process 0
        listens on this address only.
    - `heartbeat_timeout_seconds`: of silence, after which a process counts as dead and all others end.
    - `initialization_timeout`: seconds to wait for the others. Then this process ends, with a sentence on
        standard error and exit code 2: JAX can only abort.
    - `options`: as `jax.distributed.initialize` has them.

    SIGTERM stays the program's own: JAX's service for preemption, which catches it, is switched off.
    Call this before any array is made; afterwards `jax.devices()` are those of all processes.

    !!! example

        ```python
        determinax.distributed.initialize()          # under srun or mpirun
        mesh = jax.make_mesh((jax.device_count(),), ("devices",))
        estimate = determinax.log_abs_det(A, determinax.MonteCarlo(10**6), key=key, mesh=mesh)
        if determinax.distributed.is_first():
            print(estimate)
        ```
    """
    given = (coordinator_address, num_processes, process_id)
    if coordinator_address is not None:
        if None in given:
            raise ValueError(
                "coordinator_address goes with num_processes and process_id: pass all three, or none under "
                "Slurm and Open MPI"
            )
        if not coordinator_address.rpartition(":")[2].isdigit():
            raise ValueError(f"coordinator_address is host:port, not {coordinator_address!r}")
        num_processes = whole_number(num_processes, "num_processes")
        process_id = whole_number(process_id, "process_id", least=0)
        if process_id >= num_processes:
            raise ValueError(f"process_id {process_id} is not below num_processes, {num_processes}")
        options.setdefault("coordinator_bind_address", coordinator_address)
        options.setdefault("cluster_detection_method", "deactivate")
    elif (found := cluster(os.environ)) is not None:
        coordinator_address, num_processes, process_id = found[:3]
        if found.binds:
            options.setdefault("coordinator_bind_address", coordinator_address)
    import jax

    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        with _waiting(coordinator_address, num_processes, initialization_timeout):
            jax.distributed.initialize(
                coordinator_address,
                num_processes,
                process_id,
                heartbeat_timeout_seconds=heartbeat_timeout_seconds,
                initialization_timeout=initialization_timeout + 30,
                **options,
            )
    except ValueError as error:
        if coordinator_address is not None:
            raise
        raise ValueError(
            "neither Slurm nor Open MPI has started this process: pass coordinator_address, num_processes "
            "and process_id"
        ) from error


class Cluster(NamedTuple):
    """Who has started this process with others: as `initialize` wants it."""

    coordinator_address: str
    num_processes: int
    process_id: int
    binds: bool  # whether process 0 can be reached at the address that it knows itself by


def cluster(variables: Mapping[str, str]) -> Cluster | None:
    """What Slurm or Open MPI say in the environment; None where neither has started this process."""
    if {"SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_NTASKS", "SLURM_PROCID"} <= variables.keys():
        nodes, job = variables["SLURM_STEP_NODELIST"], int(variables["SLURM_JOB_ID"])
        # of node[007-015,020],other it is node007
        prefix, _, ranges = nodes.split(",")[0].partition("[")
        host = prefix + re.split(r"[-\]]", ranges)[0]
        one_node = variables.get("SLURM_STEP_NUM_NODES") == "1"
        num, rank = variables["SLURM_NTASKS"], variables["SLURM_PROCID"]
        return Cluster(f"{host}:{_port(job)}", int(num), int(rank), one_node or _is_seen(host))
    uri = variables.get("OMPI_MCA_orte_hnp_uri")
    found = None if uri is None else re.search(r"tcp://(.+?)[,:]|tcp6://\[(.+?)[,\]]", uri)
    if uri is None or found is None:
        return None
    host, job = found[1] or f"[{found[2]}]", int(uri.split(".")[0]) // _PORTS
    num, rank = variables["OMPI_COMM_WORLD_SIZE"], variables["OMPI_COMM_WORLD_RANK"]
    return Cluster(f"{host}:{_port(job)}", int(num), int(rank), True)


def _port(job: int) -> int:
    return 65535 - _PORTS + 1 + job % _PORTS


def _is_seen(host: str) -> bool:
    """Whether others see this name where we do: many a machine knows its own as a loopback address."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return not any(ipaddress.ip_address(address.split("%")[0]).is_loopback for address in found)


@contextlib.contextmanager
def _waiting(address: str | None, num: int | None, seconds: float) -> Iterator[None]:
    """Say for whom is waited; and end once it was in vain, before JAX aborts with a stack trace."""
    them = f"{num or 'the other'} processes" + (f" at {address}" if address else "")

    def say(words: str) -> None:
        print(f"determinax: {words}", file=sys.stderr, flush=True)

    def leave() -> None:
        say(f"waited {seconds:g} s for {them}: start them all")
        os._exit(_ALONE)

    timers = [
        threading.Timer(min(_PATIENT, seconds / 2), say, [f"waiting for {them}"]),
        threading.Timer(seconds, leave),
    ]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


def is_first() -> bool:
    """Whether this is process 0, which prints and writes for all."""
    import jax

    return jax.process_index() == 0


def shutdown() -> None:
    """Leave together: without this the others would take our end for a death."""
    import jax

    jax.distributed.shutdown()

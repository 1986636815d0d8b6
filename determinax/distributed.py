"""Many processes: this one joins the others, and what they compute together is printed by the first.

```python
if dx.distributed.is_first():    # also true where there is one process only
    print(dx.log_abs_det(A, dx.MonteCarlo(1000), key=key))
```
"""

from typing import Any

from determinax._checks import whole_number

# seconds of silence after which a process counts as dead, for all the others
HEARTBEAT = 10


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
    **options: Any,
) -> None:
    """Join the other processes of a run, by `jax.distributed.initialize`.

    **Arguments:**

    - `coordinator_address`, `num_processes`, `process_id`: "host:port" of process 0, how many there are,
        and which one this is. All three are found where Slurm or Open MPI started the processes. An
        address that is given is also the only one that process 0 listens on.
    - `heartbeat_timeout_seconds`: of silence, after which a process counts as dead and all others end.
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
    import jax

    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=heartbeat_timeout_seconds,
            **options,
        )
    except ValueError as error:
        if coordinator_address is not None:
            raise
        raise ValueError(
            "neither Slurm nor Open MPI has started this process: pass coordinator_address, num_processes "
            "and process_id"
        ) from error


def is_first() -> bool:
    """Whether this is process 0, which prints and writes for all."""
    import jax

    return jax.process_index() == 0


def shutdown() -> None:
    """Leave together: without this the others would take our end for a death."""
    import jax

    jax.distributed.shutdown()

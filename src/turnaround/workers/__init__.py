"""Workers, processes, and the engines through which processes communicate.

A *worker* is one data-parallel replica: its slice of every global batch, its augmentation, its batch-norm statistics.
A *process* is one operating-system process with one device; it hosts one or more workers.

Enters: the environment that a launcher sets, and the number of workers of the recipe.
Leaves: a `Workers`, the one object through which processes speak.

    contract.py      what an engine must do
    environment.py   the only reader of a launcher's variables (no torch)
    shares.py        how many workers each process hosts (no torch)
    engines.py       the table of engines: one row each (no torch)
    single.py        one process: every collective is the identity
    torch_ddp.py     several processes: NCCL on GPUs of their own, Gloo otherwise
    loopback_store.py  where processes of this machine meet: out of reach for everybody else
    torch_agent.py   torch.distributed.run that meets there, as a process of its own
    horovod.py       several processes through Horovod
    probe.py         do two processes reach each other here? for `turnaround doctor`
"""

"""The real MPI library, for a process that a launcher started as one of several.

`mpirun` and `srun --mpi=…` announce themselves in the environment. A process without a launcher or a library,
or whose program was built without MPI (fault nccl_tests_without_mpi), runs alone.
"""

import ctypes
import json
import os

# The soname of OpenMPI 4 and 5. Red Hat's lies in a folder that only its environment module adds.
LIBRARIES = ("libmpi.so.40", "/usr/lib64/openmpi/lib/libmpi.so.40")
LONGEST = 16384  # bytes that one process can send to the others at once


class Alone:
    """A program of one process."""

    rank, size = 0, 1

    def gather(self, said):
        """Return the data of all processes in the order of their ranks."""
        return [said]

    def end(self) -> None:
        """Do nothing: there is no world to leave."""


class World:
    """MPI_COMM_WORLD of a launched program. The launcher counts an exit without `end` as a failure."""

    def __init__(self, library) -> None:
        self._library = library
        self._all = self._object("ompi_mpi_comm_world")
        self._bytes = self._object("ompi_mpi_byte")
        library.MPI_Init(None, None)
        self.rank, self.size = self._number("MPI_Comm_rank"), self._number("MPI_Comm_size")

    def _object(self, name: str):
        """Return the address of an object in the library, as mpi.h defines MPI_COMM_WORLD and MPI_BYTE."""
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._library, name)))

    def _number(self, function: str) -> int:
        found = ctypes.c_int()
        getattr(self._library, function)(self._all, ctypes.byref(found))
        return found.value

    def gather(self, said):
        """Return the data (JSON) of all processes in the order of ranks; waits for all, like a barrier."""
        block = json.dumps(said).encode().ljust(LONGEST)
        if len(block) > LONGEST:
            raise SystemExit(f"a process has more to say than {LONGEST} bytes")
        mine = ctypes.create_string_buffer(block, LONGEST)
        theirs = ctypes.create_string_buffer(LONGEST * self.size)
        self._library.MPI_Allgather(mine, LONGEST, self._bytes, theirs, LONGEST, self._bytes, self._all)
        return [json.loads(theirs.raw[at : at + LONGEST].decode()) for at in range(0, len(theirs), LONGEST)]

    def end(self) -> None:
        """Leave together with all processes."""
        self._library.MPI_Finalize()


def launched(environment) -> bool:
    """Whether a launcher started this process as one of several: mpirun, or srun with a plugin for MPI."""
    if {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"} & set(environment):
        return True
    return "SLURM_PROCID" in environment and environment.get("SLURM_MPI_TYPE", "none") != "none"


def library():
    """Load the MPI library; None if it is not installed."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)  # its plugins look up its symbols
        except OSError:
            continue
    return None


def world(node):
    """Return the world of processes that this one works with."""
    if node.fault("nccl_tests_without_mpi") or not launched(os.environ):
        return Alone()
    found = library()
    return World(found) if found else Alone()

"""What makes a program one of several: the real MPI library, for a process that a launcher has started.

`mpirun` and `srun --mpi=…` say so in the environment. A process that nobody launched, one that finds no
library, and one whose program was built without MPI (fault nccl_tests_without_mpi) is alone.
"""

import ctypes
import json
import os

# The soname of OpenMPI 4 and 5. Red Hat's lies where only its environment module looks.
LIBRARIES = ("libmpi.so.40", "/usr/lib64/openmpi/lib/libmpi.so.40")
LONGEST = 16384  # bytes that one process tells the others at once


class Alone:
    """A program of one process."""

    rank, size = 0, 1

    def gather(self, said):
        """What everybody said, in the order of their ranks."""
        return [said]

    def end(self) -> None:
        """Leave."""


class World:
    """MPI_COMM_WORLD of a launched program. To the launcher, whoever exits without `end` has failed."""

    def __init__(self, library) -> None:
        self._library = library
        self._all = self._object("ompi_mpi_comm_world")
        self._bytes = self._object("ompi_mpi_byte")
        library.MPI_Init(None, None)
        self.rank, self.size = self._number("MPI_Comm_rank"), self._number("MPI_Comm_size")

    def _object(self, name: str):
        """What mpi.h makes of MPI_COMM_WORLD and MPI_BYTE: addresses of objects in the library."""
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self._library, name)))

    def _number(self, function: str) -> int:
        found = ctypes.c_int()
        getattr(self._library, function)(self._all, ctypes.byref(found))
        return found.value

    def gather(self, said):
        """What everybody said (JSON), in the order of their ranks. It waits for all, as a barrier does."""
        block = json.dumps(said).encode().ljust(LONGEST)
        if len(block) > LONGEST:
            raise SystemExit(f"a process has more to say than {LONGEST} bytes")
        mine = ctypes.create_string_buffer(block, LONGEST)
        theirs = ctypes.create_string_buffer(LONGEST * self.size)
        self._library.MPI_Allgather(mine, LONGEST, self._bytes, theirs, LONGEST, self._bytes, self._all)
        return [json.loads(theirs.raw[at : at + LONGEST].decode()) for at in range(0, len(theirs), LONGEST)]

    def end(self) -> None:
        """Leave together."""
        self._library.MPI_Finalize()


def launched(environment) -> bool:
    """Whether a launcher started this process as one of several: mpirun, or srun with a plugin for MPI."""
    if {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"} & set(environment):
        return True
    return "SLURM_PROCID" in environment and environment.get("SLURM_MPI_TYPE", "none") != "none"


def library():
    """The MPI library, None where there is none."""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)  # its plugins look for its symbols
        except OSError:
            continue
    return None


def world(node):
    """The processes this one works with."""
    if node.fault("nccl_tests_without_mpi") or not launched(os.environ):
        return Alone()
    found = library()
    return World(found) if found else Alone()

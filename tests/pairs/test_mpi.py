"""Command lines of mpirun and srun: their arguments, each of which stays a single word."""

from __future__ import annotations

import pytest

from provision.checks.pairs.nccl_between import Member, Program, known_hosts, openmpi, slurm

ED, RSA, EC = "ssh-ed25519 AAAAed", "ssh-rsa AAAArsa", "ecdsa-sha2-nistp256 AAAAec"
PROGRAM = Program(("/usr/bin/all_reduce_perf", "-g", "8"), {"NCCL_NET": "IB"})
MEMBERS = (
    Member("gpu-01", "10.0.0.1", 22, (RSA, ED), "n1"),
    Member("gpu-02", "10.0.0.2", 2222, (RSA, ED), "n2"),
    Member("gpu-03", "gpu-03.rack", 22, (RSA,), "n3"),
)
FOLDER, MARK = "/run/gpuprov-launch/x", ("GPUPROV_LAUNCH", "x")


def after(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize(
    ("keys", "taken"), [((RSA, EC, ED), ED), ((ED, RSA), ED), ((RSA, EC), RSA), ((EC,), EC)]
)
def test_a_host_is_known_by_one_key_ed25519_where_it_has_one(keys: tuple[str, ...], taken: str) -> None:
    assert known_hosts([Member("a", "10.0.0.1", 22, keys)]) == f"10.0.0.1 {taken}"


def test_a_host_at_another_port_is_known_with_it() -> None:
    assert known_hosts(MEMBERS) == (f"10.0.0.1 {ED}\n[10.0.0.2]:2222 {ED}\ngpu-03.rack {RSA}")
    assert known_hosts([]) == ""


def test_mpirun_starts_one_process_on_each_of_them() -> None:
    started = openmpi(PROGRAM, MEMBERS, "/opt/bin/mpirun", FOLDER, MARK, "")
    argv = started.argv
    assert argv[0] == "/opt/bin/mpirun"
    assert argv[-3:] == PROGRAM.argv
    assert (after(argv, "-np"), after(argv, "--host")) == ("3", "10.0.0.1:1,10.0.0.2:1,gpu-03.rack:1")
    assert after(argv, "--map-by").startswith("ppr:1:node")
    assert after(argv, "--bind-to") == "none", "a process has all GPUs, and needs all cores"
    assert [argv[at + 1] for at, word in enumerate(argv) if word == "-x"] == ["NCCL_NET", "GPUPROV_LAUNCH"]
    assert (started.env["NCCL_NET"], started.env["GPUPROV_LAUNCH"]) == ("IB", "x")


def test_both_generations_of_openmpi_reach_the_others_over_the_launch() -> None:
    env = openmpi(PROGRAM, MEMBERS, "mpirun", FOLDER, MARK, "").env
    agent = f"/bin/sh {FOLDER}/reach"
    assert env["OMPI_MCA_plm_rsh_agent"] == env["PRTE_MCA_plm_ssh_agent"] == agent
    assert env["OMPI_MCA_plm_rsh_no_tree_spawn"] == env["PRTE_MCA_plm_ssh_no_tree_spawn"] == "1"
    assert (env["OMPI_MCA_pml"], env["OMPI_MCA_btl"]) == ("ob1", "tcp,self")
    assert env["GPUPROV_HOST_KEYS"] == known_hosts(MEMBERS[1:]), "the first reaches all others"
    assert env["GPUPROV_SSH_PORTS"].splitlines() == ["10.0.0.2 2222", "gpu-03.rack 22"]


def test_the_networks_of_mpi_are_said_only_when_they_are_stated() -> None:
    free, bound = (
        openmpi(PROGRAM, MEMBERS, "mpirun", FOLDER, MARK, nets).env for nets in ("", "10.1.0.0/16")
    )
    names = {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"}
    assert not names & free.keys()
    assert {bound[name] for name in names} == {"10.1.0.0/16"}


def test_srun_asks_for_these_nodes_and_one_process_on_each() -> None:
    started = slurm(PROGRAM, MEMBERS, "gpuprov-x-n1", 181.0, "pmix", ("--partition=gpu", "-Aops"))
    argv = started.argv
    assert argv[0] == "srun"
    assert argv[-5:] == ("--partition=gpu", "-Aops", *PROGRAM.argv)
    for word in ("--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--nodelist=n1,n2,n3", "--mpi=pmix"):
        assert word in argv
    assert {"--exclusive", "--immediate=60", "--kill-on-bad-exit=1", "--job-name=gpuprov-x-n1"} <= set(argv)
    assert started.env["NCCL_NET"] == "IB"
    assert started.env["OMPI_MCA_pml"] == "ob1"
    assert started.env["SLURM_PMIX_FENCE"] == "ring", "with the other one OpenMPI 5 crashes now and then"
    assert not [name for name in started.env if "plm" in name or name.startswith(("GPUPROV", "PRTE"))]


@pytest.mark.parametrize(("seconds", "minutes"), [(1.0, 1), (59.0, 1), (61.0, 2), (181.0, 4), (600.0, 10)])
def test_slurm_ends_it_no_earlier_than_we_do(seconds: float, minutes: int) -> None:
    words = slurm(PROGRAM, MEMBERS, "j", seconds, "pmix", ()).argv
    (limit,) = [int(word.removeprefix("--time=")) for word in words if word.startswith("--time=")]
    assert minutes <= limit <= minutes + 1
    assert limit * 60 >= seconds


def test_hostile_values_of_the_inventory_stay_one_word_each() -> None:
    hostile = "a;touch x $(id) `id` | & > 'q' \"d\" *"
    members = [Member("n", hostile, 22, (ED,), hostile) for _ in range(2)]
    program = Program((hostile, "-g", "8"), {})
    plain = openmpi(PROGRAM, MEMBERS[:2], "m", FOLDER, MARK, "")
    started = openmpi(
        Program((hostile, *PROGRAM.argv[1:]), PROGRAM.env), members, hostile, FOLDER, MARK, hostile
    )
    assert len(started.argv) == len(plain.argv)
    assert (started.argv[0], started.argv[-3]) == (hostile, hostile)
    assert after(started.argv, "--host") == f"{hostile}:1,{hostile}:1"
    assert started.env["OMPI_MCA_plm_rsh_agent"] == f"/bin/sh {FOLDER}/reach", "the only line of shell"
    words = slurm(program, members, hostile, 60.0, hostile, (f"--comment={hostile}",)).argv
    assert f"--job-name={hostile}" in words
    assert f"--nodelist={hostile},{hostile}" in words
    assert f"--comment={hostile}" in words
    assert words[-3:] == program.argv

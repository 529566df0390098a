"""The output of perftest's bandwidth programs, in the form of their source (linux-rdma/perftest)."""

RULE = "-" * 87


def head(options: dict, card: dict, server: bool, latency: bool = False) -> None:
    ethernet = card["layer"] == "roce"
    test = "Latency" if latency else "{}BW".format("Bidirectional " if options.get("both") else "")
    lines = [
        RULE,
        f"                    RDMA_Write {test} Test",
        f" Dual-port       : OFF\t\tDevice         : {card['name']}",
        f" Number of qps   : {options['qps']}\t\tTransport type : IB",
        " Connection type : RC\t\tUsing SRQ      : OFF",
        " PCIe relax order: {}\t\tLock-free      : OFF".format("OFF" if latency else "ON"),
        " ibv_wr* API     : ON\t\tUsing Enhanced Reorder      : OFF",
    ]
    if not server:
        lines.append(f" TX depth        : {1 if latency else 128}")
    lines += [
        *([] if latency else [" CQ Moderation   : 1", " CQE Poll Batch  : Dynamic"]),
        f" Mtu             : {1024 if ethernet else 4096}[B]",
        " Link type       : {}".format("Ethernet" if ethernet else "IB"),
        *([" GID index       : 3"] if ethernet else []),
        f" Max inline data : {220 if latency else 0}[B]",
        " rdma_cm QPs\t : OFF",
        " Data ex. method : Ethernet",
        RULE,
    ]
    for side in ("local", "remote"):
        for pair in range(options["qps"]):
            lines.append(
                f" {side} address: LID {0x30 + card['number']:#04x} QPN {0x120 + pair:#06x} PSN "
                f"{0x3FF1BC + pair:#06x} RKey {0x1FFF00:#08x} VAddr {0x7F19ADCBF000 + (pair << 23):#018x}"
            )
    print("\n".join([*lines, RULE]))


def table(options: dict, row: list) -> None:
    size, sent, peak, average = row
    unit = "Gb/sec" if options.get("gbits") else "MiB/sec"
    scale = 1.0 if options.get("gbits") else 1e9 / 8 / (1 << 20)
    messages = average * 1e3 / (8 * size)
    print(f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]")
    print(
        f" {size:<7d}    {sent:<10d}       {peak * scale:<7.2f}            {average * scale:<7.2f}\t\t     "
        f"{messages:<7.6f}"
    )
    print(RULE)


def latency_table(_options: dict, row: list) -> None:
    size, sent, least, most, median, mean, deviation, most_of_100, most_of_1000 = row
    print(
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"
        "   99% percentile[usec]   99.9% percentile[usec] "
    )
    print(
        f" {size:<7d} {sent}          {least:<7.2f}        {most:<7.2f}      {median:<7.2f}  \t"
        f"       {mean:<7.2f}     \t{deviation:<7.2f}\t\t{most_of_100:<7.2f} \t\t{most_of_1000:<7.2f}"
    )
    print(RULE)

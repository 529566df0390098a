"""What the bandwidth programs of perftest print, in the form of their source (linux-rdma/perftest)."""

RULE = "-" * 87


def head(options: dict, card: dict, server: bool) -> None:
    ethernet = card["layer"] == "roce"
    lines = [
        RULE,
        "                    RDMA_Write {}BW Test".format("Bidirectional " if options.get("both") else ""),
        f" Dual-port       : OFF\t\tDevice         : {card['name']}",
        f" Number of qps   : {options['qps']}\t\tTransport type : IB",
        " Connection type : RC\t\tUsing SRQ      : OFF",
        " PCIe relax order: ON\t\tLock-free      : OFF",
        " ibv_wr* API     : ON\t\tUsing Enhanced Reorder      : OFF",
    ]
    if not server:
        lines.append(" TX depth        : 128")
    lines += [
        " CQ Moderation   : 1",
        " CQE Poll Batch  : Dynamic",
        f" Mtu             : {1024 if ethernet else 4096}[B]",
        " Link type       : {}".format("Ethernet" if ethernet else "IB"),
        *([" GID index       : 3"] if ethernet else []),
        " Max inline data : 0[B]",
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

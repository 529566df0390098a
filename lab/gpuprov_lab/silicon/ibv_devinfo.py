"""ibv_devinfo of rdma-core (libibverbs/examples/devinfo.c), which prints data of each device."""

import nics

MTU_NUMBER = {256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}
STATES = {"1: DOWN": "PORT_DOWN (1)", "2: INIT": "PORT_INIT (2)", "4: ACTIVE": "PORT_ACTIVE (4)"}


def ibv_devinfo(node, arguments: list) -> int:
    """Print every device; `-d NAME`: only that one."""
    cards = nics.working(node)
    if len(arguments) == 2 and arguments[0] == "-d":
        cards = [card for card in cards if card["name"] == arguments[1]]
        if not cards:
            print(f"IB device '{arguments[1]}' wasn't found")
            return 255
    if not cards:
        print("No IB devices found")
        return 255
    for card in cards:
        print("\n".join(_block(node, card)) + "\n")
    return 0


def _block(node, card) -> list:
    _, psid, firmware, _ = nics.BOARDS[card["board"]]
    files = nics.port_files(node, card)
    mtu = nics.mtu_of(node, card)
    part = int(nics.BOARDS[card["board"]][3][2:])
    return [
        "hca_id:\t{}".format(card["name"]),
        "\ttransport:\t\t\tInfiniBand (0)",
        f"\tfw_ver:\t\t\t\t{firmware}",
        "\tnode_guid:\t\t\t{}".format(files["gids/0"][20:]),
        "\tsys_image_guid:\t\t\t{}".format(files["gids/0"][20:]),
        "\tvendor_id:\t\t\t0x02c9",
        f"\tvendor_part_id:\t\t\t{part}",
        "\thw_ver:\t\t\t\t0x0",
        f"\tboard_id:\t\t\t{psid}",
        "\tphys_port_cnt:\t\t\t1",
        "\t\tport:\t1",
        "\t\t\tstate:\t\t\t{}".format(STATES[files["state"]]),
        "\t\t\tmax_mtu:\t\t4096 (5)",
        f"\t\t\tactive_mtu:\t\t{mtu} ({MTU_NUMBER[mtu]})",
        "\t\t\tsm_lid:\t\t\t{}".format(int(files["sm_lid"], 16)),
        "\t\t\tport_lid:\t\t{}".format(int(files["lid"], 16)),
        "\t\t\tport_lmc:\t\t0x00",
        "\t\t\tlink_layer:\t\t{}".format(files["link_layer"]),
    ]

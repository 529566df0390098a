"""The part of `nvidia-smi -q` about ECC, retired pages and remapped rows (see nvidia_smi_tree)."""

NA = "N/A"


def health(node, one: dict, form: int) -> list:
    """ECC, retired pages, remapped rows."""
    counts = [
        ("volatile", "Volatile", 0, one["uncorrectable"]),
        ("aggregate", "Aggregate", one["corrected_ever"], one["uncorrectable_ever"]),
    ]
    errors = []
    for name, label, corrected, uncorrected in counts:
        rows = [("sram_correctable", "SRAM Correctable", "0")]
        if form == 535:
            rows.append(("sram_uncorrectable", "SRAM Uncorrectable", "0"))
        else:
            rows.append(("sram_uncorrectable_parity", "SRAM Uncorrectable Parity", "0"))
            rows.append(("sram_uncorrectable_secded", "SRAM Uncorrectable SEC-DED", "0"))
        rows.append(("dram_correctable", "DRAM Correctable", str(corrected)))
        rows.append(("dram_uncorrectable", "DRAM Uncorrectable", str(uncorrected)))
        if form != 535 and name == "aggregate":
            rows.append(("sram_threshold_exceeded", "SRAM Threshold Exceeded", "No"))
        errors.append((name, label, rows))
    if form != 535:
        sources = [
            ("l2", "L2"),
            ("sm", "SM"),
            ("microcontroller", "Microcontroller"),
            ("pcie", "PCIE"),
            ("other", "Other"),
        ]
        errors.append(
            (
                "aggregate_uncorrectable_sram_sources",
                "Aggregate Uncorrectable SRAM Sources",
                [(f"sram_{x}", f"SRAM {t}", "0") for x, t in sources],
            )
        )
    if form == 590:
        errors += [
            ("channel_repair_pending", "Channel Repair Pending", "No"),
            ("tpc_repair_pending", "TPC Repair Pending", "No"),
            ("unrepairable_memory", "Unrepairable Memory", "No"),
        ]
    mode = [("current_ecc", "Current", "Enabled"), ("pending_ecc", "Pending", "Enabled")]
    return [
        ("ecc_mode", "ECC Mode", mode),
        ("ecc_errors", "ECC Errors", errors),
        *_retired(),
        _remapped(node, one, form),
    ]


def _retired() -> list:
    pages = [("retired_count", None, NA), ("retired_pagelist", None, NA)]
    return [
        (
            "retired_pages",
            "Retired Pages",
            [
                ("multiple_single_bit_retirement", None, pages),
                ("double_bit_retirement", None, pages),
                (None, "Single Bit ECC", NA),
                (None, "Double Bit ECC", NA),
                ("pending_blacklist", "Pending Page Blacklist", NA),
                ("pending_retirement", None, NA),
            ],
        )
    ]


def _remapped(node, one: dict, form: int):
    banks = {"Ampere": 640, "Hopper": 2560, "Blackwell": 4096, "Ada Lovelace": 192}[node.sku["architecture"]]
    used = 1 if one["remapped_uncorrectable"] else 0
    levels = [
        ("max", "Max", banks - used),
        ("high", "High", used),
        ("partial", "Partial", 0),
        ("low", "Low", 0),
        ("none", "None", 0),
    ]
    histogram = [(f"row_remapper_histogram_{x}", t, f"{count} bank(s)") for x, t, count in levels]
    rows = [("remapped_row_corr", "Correctable Error", str(one["remapped_correctable"]))]
    if form == 590:
        rows.append(("remapped_row_corr_inactive", "Inactive Correctable Error", "0"))
    rows.append(("remapped_row_unc", "Uncorrectable Error", str(one["remapped_uncorrectable"])))
    if form == 590:
        rows.append(("remapped_row_unc_inactive", "Inactive Uncorrectable Error", "0"))
    rows += [
        ("remapped_row_pending", "Pending", "Yes" if one["remap_pending"] else "No"),
        ("remapped_row_failure", "Remapping Failure Occurred", "Yes" if one["remap_failure"] else "No"),
        ("row_remapper_histogram", "Bank Remap Availability Histogram", histogram),
    ]
    return ("remapped_rows", "Remapped Rows", rows)

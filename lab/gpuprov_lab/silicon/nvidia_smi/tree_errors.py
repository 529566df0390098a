"""The part of `nvidia-smi -q` about ECC, retired pages and remapped rows (see nvidia_smi_tree)."""

NA = "N/A"


def health(node, one: dict, form: int) -> list:
    """Return the entries for ECC, retired pages and remapped rows."""
    volatile = _counters(0, one["uncorrectable"], form)
    ever = _counters(one["corrected_ever"], one["uncorrectable_ever"], form, one["sram_ever"])
    if form >= 550:
        exceeded = "Yes" if one["sram_threshold"] else "No"
        ever.append(("sram_threshold_exceeded", "SRAM Threshold Exceeded", exceeded))
    errors = [("volatile", "Volatile", volatile), ("aggregate", "Aggregate", ever)]
    if form >= 550:
        parts = ("L2", "SM", "Microcontroller", "PCIE", "Other")
        sources = [(f"sram_{part.lower()}", f"SRAM {part}", "0") for part in parts]
        label = "Aggregate Uncorrectable SRAM Sources"
        errors.append((label.lower().replace(" ", "_"), label, sources))
    if form >= 580:
        errors += [
            ("channel_repair_pending", "Channel Repair Pending", "No"),
            ("tpc_repair_pending", "TPC Repair Pending", "No"),
        ]
    if form >= 581:
        unrepairable = NA if node.sku["architecture"] == "Ada Lovelace" else "No"
        errors.append(("unrepairable_memory", "Unrepairable Memory", unrepairable))
    current, pending = ("Enabled" if one["settings"][key] else "Disabled" for key in ("ecc", "ecc_pending"))
    mode = [("current_ecc", "Current", current), ("pending_ecc", "Pending", pending)]
    ecc = [("ecc_mode", "ECC Mode", mode), ("ecc_errors", "ECC Errors", errors)]
    return [*ecc, *_retired(), _remapped(node, one, form)]


def _counters(corrected: int, uncorrected: int, form: int, broken: int = 0) -> list:
    if form < 550:
        sram = [("sram_uncorrectable", "SRAM Uncorrectable", str(broken))]
    else:
        sram = [
            ("sram_uncorrectable_parity", "SRAM Uncorrectable Parity", str(broken)),
            ("sram_uncorrectable_secded", "SRAM Uncorrectable SEC-DED", "0"),
        ]
    return [
        ("sram_correctable", "SRAM Correctable", "0"),
        *sram,
        ("dram_correctable", "DRAM Correctable", str(corrected)),
        ("dram_uncorrectable", "DRAM Uncorrectable", str(uncorrected)),
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
    used, (low, none) = 1 if one["remapped_uncorrectable"] else 0, one["remap_banks"]
    levels = [
        ("max", "Max", banks - used - low - none),
        ("high", "High", used),
        ("partial", "Partial", 0),
        ("low", "Low", low),
        ("none", "None", none),
    ]
    histogram = [(f"row_remapper_histogram_{x}", t, f"{count} bank(s)") for x, t, count in levels]
    rows = [("remapped_row_corr", "Correctable Error", str(one["remapped_correctable"]))]
    if form >= 581:
        rows.append(("remapped_row_corr_inactive", "Inactive Correctable Error", "0"))
    rows.append(("remapped_row_unc", "Uncorrectable Error", str(one["remapped_uncorrectable"])))
    if form >= 581:
        rows.append(("remapped_row_unc_inactive", "Inactive Uncorrectable Error", "0"))
    rows += [
        ("remapped_row_pending", "Pending", "Yes" if one["remap_pending"] else "No"),
        ("remapped_row_failure", "Remapping Failure Occurred", "Yes" if one["remap_failure"] else "No"),
        ("row_remapper_histogram", "Bank Remap Availability Histogram", histogram),
    ]
    return ("remapped_rows", "Remapped Rows", rows)

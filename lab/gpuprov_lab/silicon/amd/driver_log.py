"""Kernel log lines of the driver amdgpu: at load time, and for each fault.

The forms come from AMD's own list of kernel errors (amd/node-scraper, plugins/inband/dmesg) and the driver's
sources: `amdgpu 0000:05:00.0: amdgpu: TEXT`, and for RAS events of newer drivers `{N}TEXT`, with the event's
number. Counted errors: the driver of MI200 prints one line, that of MI300 and newer two for each die
(amdgpu_ras.c, amdgpu_ras_error_print_error_data).
"""

EVENTS = {
    "ring_timeout": "ring comp_1.0.0 timeout, signaled seq=4210, emitted seq=4212",
    "ring_recovered": "ring comp_1.0.1 timeout, but soft recovered",
    "firmware_stuck": "SMU: I'm not done with your previous command: SMN_C2PMSG_66:0x00000012 "
    "SMN_C2PMSG_82:0x00000005",
    "fatal_event": "uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
    "pages_over": "RAS records:300 exceed threshold:256",
    "asic_reset": "ASIC reset failed with error, -62 for drm dev, renderD128",
    "topology": "XGMI: Set topology failure on device 1a2b3c, hive 4d5e6f, ret -22",
    "ip_discovery": "get invalid ip discovery binary signature",
    "fence_timeout": "qcm fence wait loop timeout expired",
    "page_fault": "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32770)",
    "poison": "Poison is created",
    "poison_consumed": "poison is consumed by client 27, kick off gpu reset flow",
    "throttled": "WARN: GPU is throttled, expect performance decrease. "
    "Power limit exceeded or temperature too high.",
    "vram_lost": "VRAM is lost due to GPU reset!",
}
_KINDS = {"ue": "uncorrectable", "ce": "correctable", "de": "deferred"}


def line(gpu, text: str) -> str:
    return f"amdgpu {gpu['address']}: amdgpu: {text}"


def at_loading(node, version: str) -> list:
    """Return the driver's lines at load time, about itself and about each GPU."""
    lines = ["[drm] amdgpu kernel modesetting enabled."]
    lines += [f"[drm] amdgpu version: {version}"] if version else []
    for gpu in node.on_bus():
        if node.fault("gpu_off_bus_at_boot", gpu=gpu["slot"]):
            lines.append(line(gpu, "Fatal error during GPU init"))
            lines.append(f"amdgpu {gpu['address']}: probe with driver amdgpu failed with error -19")
            continue
        mib = node.sku["vram_mib"]
        lines.append(line(gpu, f"VRAM: {mib}M 0x0000008000000000 - 0x000000AFFFFFFFFF ({mib}M used)"))
        lines.append(f"[drm] Initialized amdgpu 3.61.0 for {gpu['address']} on minor {gpu['slot']}")
    return lines


def lines(node, fault: dict) -> list:
    """Return the driver's lines about one fault; empty for faults that it does not notice."""
    name = fault["id"]
    if "gpu" not in fault:
        return []
    gpu = node.gpus[fault["gpu"]]
    if name == "gpu_off_bus":
        return [line(gpu, "device lost from bus!")]
    if name == "ecc_uncorrectable":
        return _counted(node, gpu, "ue", "umc", fault["count"])
    if name in ("ras_errors", "ras_corrected_few"):
        return _counted(node, gpu, fault.get("kind", "ce"), fault.get("block", "umc"), fault["count"])
    if name == "bad_pages" and fault["count"] >= node.sku["bad_page_threshold"]:
        threshold = node.sku["bad_page_threshold"]
        return [line(gpu, f"Saved bad pages {fault['count']} reaches threshold value {threshold}")]
    if name == "gpu_reset":
        failed = fault["result"] == "failed"
        ended = "GPU reset(1) failed" if failed else "GPU reset(1) succeeded!"
        return [line(gpu, "GPU reset begin!"), line(gpu, ended)]
    if name == "gpu_event":
        return [line(gpu, EVENTS[fault["event"]])]
    return []


def _counted(node, gpu, kind: str, block: str, count: int) -> list:
    what = f"{_KINDS[kind]} hardware errors detected"
    if node.sku["architecture"] == "cdna2":
        total = " in total" if kind == "ce" else ""
        return [f"amdgpu {gpu['address']}: {{1}}{count} {what}{total} in {block} block"]
    place = f"amdgpu {gpu['address']}: {{1}}socket: {gpu['slot']}, die: 0, {count}"
    return [f"{place} new {what} in {block} block", f"{place} {what} in total in {block} block"]

"""AMD's Instinct GPUs of the lab: what the kernel shows of them, and the programs of ROCm."""

"""AMD Instinct GPUs of the lab: their kernel interfaces, and the programs of ROCm."""

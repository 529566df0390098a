"""The checks as nodes with AMD's Instinct GPUs take them: the ids, metrics and verdicts are those of all."""

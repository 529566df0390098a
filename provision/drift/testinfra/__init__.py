"""The fleet's expectations as pytest tests, one for each node and fact, read by testinfra.

    pip install gpuprov[testinfra]
    pytest -p gpuprov.pytest_plugin --pyargs provision.drift.testinfra --gpuprov-inventory inventory.yml

This second reader is independent of the program that `gpuprov drift` sends, so that neither repeats the
other's mistakes. Facts that testinfra cannot read are skipped with the reason, and counted. It starts a
program on the node for each fact; use it in a CI built on pytest or as a cross-check, and `gpuprov drift`
otherwise."""

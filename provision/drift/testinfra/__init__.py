"""The fleet's expectations as pytest tests, one for each node and fact, read by testinfra.

    pip install gpuprov[testinfra]
    pytest -p gpuprov.pytest_plugin --pyargs provision.drift.testinfra --gpuprov-inventory inventory.yml

A second reader, independent of the program `gpuprov drift` sends: what one of the two misreads, the other
does not. What testinfra cannot read is skipped with the reason, and counted. It costs a node a program for
each fact, and is meant for a CI that speaks pytest, and for distrust; `gpuprov drift` is for the rest.
"""

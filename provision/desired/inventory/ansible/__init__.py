"""Inventories and configuration as Ansible itself reads them."""

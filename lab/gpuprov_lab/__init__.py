"""A fleet of simulated GPU nodes on this machine: real Linux, real SSH, simulated silicon."""

"""The simulated ib_write_bw and ib_write_lat."""

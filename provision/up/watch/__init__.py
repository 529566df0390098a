"""`gpuprov watch`: a failed node is taken out of service, and a validated spare takes its place."""

"""`gpuprov watch`: a node that fails is taken out of service, and a proven spare is put in its place."""

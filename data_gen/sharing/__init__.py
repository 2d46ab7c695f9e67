"""Work sharing: one coordinator hands out items, largest first, to processes of this machine or to MPI ranks."""

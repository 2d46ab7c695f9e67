"""The simulation stage: crystals become specimens, diffraction patterns and shards."""

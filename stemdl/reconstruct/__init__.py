"""From patterns to the projected potential: prediction, how good it is (`quality`), the file that keeps it (`emd`)."""

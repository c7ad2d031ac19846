"""One training run: its configuration, its record on disk, the collapse rule and the trainer itself."""

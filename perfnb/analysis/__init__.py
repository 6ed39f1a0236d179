"""Pure functions: a frame in, a new frame or a small frozen dataclass out. Knows no files, plotting or IPython."""

"""Running a step under observation: passes, layer spans, torch.profiler. Knows no pandas, plotting or IPython."""

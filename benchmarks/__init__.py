"""Programs behind the figures: the demo, the benchmarks, and the demo model's training."""

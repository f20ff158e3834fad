"""Time to first token: through the services, and by mlx-lm."""

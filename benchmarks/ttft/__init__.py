"""Time to first token: through the services, and by mlx-lm.

command     the command line, and the order of everything
in_process  mlx-lm, in a process of their own that is asked by `children`
report      tables
"""

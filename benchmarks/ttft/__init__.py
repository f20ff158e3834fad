"""Time to first token: through the services, of the parts that a warm turn cannot do without, and by mlx-lm.

command     the command line, and the order of everything
in_process  the parts and mlx-lm, in a process of their own that is asked by `children`
report      tables
"""

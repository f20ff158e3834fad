from deploy.docs import metrics

OF_LINUX = {
    *("process_cpu_seconds_total", "process_max_fds", "process_open_fds", "process_resident_memory_bytes"),
    *("process_start_time_seconds", "process_virtual_memory_bytes"),
}


def of_a_cluster() -> set[str]:
    return {row.name for row in metrics.rows() if row.processes == (metrics.CLUSTER,)}


def documented() -> set[str]:
    return {row.name for row in metrics.rows()} | OF_LINUX

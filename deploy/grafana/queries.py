"""PromQL for panels. Metrics of requests and of reuse have a model; those of the store and the gateway have none."""

STACK = 'instance=~"$instance"'
MODEL = f'{STACK},model_id=~"$model"'

READY = f'min by (instance, service) (agentmem_ready{{{STACK}}} or 0 * up{{job="agentmem",{STACK}}})'
"""1 while a process says that it serves, 0 while it says that it does not, or says nothing."""


def total(metric: str, by: str = "", where: str = MODEL) -> str:
    """The sum of a gauge."""
    return f"{_sum(by)}({metric}{{{where}}})"


def rate(metric: str, by: str = "", where: str = MODEL) -> str:
    """What a counter gains in a second."""
    return f"{_sum(by)}(rate({metric}{{{where}}}[$__rate_interval]))"


def some(expression: str) -> str:
    """Only what happens at all, of series of which most are always 0."""
    return f"{expression} > 0"


def increase(metric: str, by: str = "", where: str = MODEL) -> str:
    """What a counter gained in the range that the dashboard shows."""
    return f"{_sum(by)}(increase({metric}{{{where}}}[$__range]))"


def quantile(share: float, histogram: str, by: str = "", where: str = MODEL) -> str:
    """A percentile of a histogram, named without its suffix; nothing where nothing was observed."""
    grouped = f"{by}, le" if by else "le"
    return f"histogram_quantile({share:g}, {rate(f'{histogram}_bucket', grouped, where)}) >= 0"


def share(part: str, whole: str, by: str = "") -> str:
    """Part of a whole, which is not split by `by`; nothing where the whole is nothing."""
    return f"{part} / on () group_left () ({whole} > 0)" if by else f"{part} / ({whole} > 0)"


def _sum(by: str) -> str:
    return f"sum by ({by}) " if by else "sum"

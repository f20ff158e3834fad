"""What the dashboards have in common. A panel's description says what it shows, and what to do when it looks bad."""

from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

Target = tuple[str, str]
"""An expression, and the legend of its series."""
PROMETHEUS: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
_TAG: Final = "agentmem"
_COLUMNS: Final = 24


class Board:
    """A dashboard in the making. Panels of a row are equally wide, as far as 24 columns allow it."""

    def __init__(self, uid: str, title: str, description: str, *, models: bool = True) -> None:
        """`models`: whether its panels are split by model."""
        self._panels = 0
        self._built = (
            dashboard.Dashboard(title)
            .uid(uid)
            .description(description)
            .tags([_TAG])
            .readonly()
            .refresh("10s")
            .time("now-1h", "now")
            .timezone("browser")
            .tooltip(DashboardCursorSync.CROSSHAIR)
            .link(
                dashboard.DashboardLink("Agentmem")
                .type(DashboardLinkType.DASHBOARDS)
                .tags([_TAG])
                .as_dropdown(True)
                .include_vars(True)
                .keep_time(True)
            )
            .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
            .with_variable(_choice("instance", "Stack", "label_values(agentmem_build_info, instance)"))
        )
        if models:
            query = 'label_values(agentmem_prompt_tokens_total{instance=~"$instance"}, model_id)'
            self._built.with_variable(_choice("model", "Model", query))

    def row(self, title: str, *panels: timeseries.Panel | stat.Panel, height: int = 8) -> None:
        """Add a row of panels."""
        self._built.with_row(dashboard.Row(title).id(self._next()))
        width, rest = divmod(_COLUMNS, len(panels))
        for place, panel in enumerate(panels):
            panel.id(self._next()).height(height).span(width if place else width + rest)
            self._built.with_panel(panel)

    def _next(self) -> int:
        self._panels += 1
        return self._panels

    def build(self) -> dict[str, object]:
        """What Grafana reads."""
        return self._built.build().to_json()


def lines(
    title: str, description: str, unit: str, *targets: Target, stacked: bool = False, most: float | None = None
) -> timeseries.Panel:
    """Curves over time, in a unit of Grafana's. `most`: the top of the axis."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .unit(unit)
        .min(0)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .legend(
            common.VizLegendOptions()
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .show_legend(True)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .targets([_query(target, place).range() for place, target in enumerate(targets)])
    )
    if most is not None:
        panel.max(most)
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL))
    return panel


def number(title: str, description: str, unit: str, *targets: Target, bad: float | None = None) -> stat.Panel:
    """Numbers as they are now. `bad`: from where on they are red; a negative one: below which they are.

    Asked for at one time: of a range Grafana would show the last value, which a process that is gone has left.
    """
    steps = [Threshold(color="green")]
    if bad is not None and bad < 0:
        steps = [Threshold(color="red"), Threshold(value=-bad, color="green")]
    elif bad is not None:
        steps.append(Threshold(value=bad, color="red"))
    return (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(PROMETHEUS)
        .unit(unit)
        .graph_mode(BigValueGraphMode.NONE)
        .color_mode(BigValueColorMode.VALUE)
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .targets([_query(target, place).instant() for place, target in enumerate(targets)])
    )


def _query(target: Target, place: int) -> prometheus.Dataquery:
    expression, legend = target
    return prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + place))


def _choice(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(PROMETHEUS)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .current(VariableOption(text="All", value="$__all"))
        .multi(True)
        .include_all(True)
    )

// Types of what the page uses of uplot.js; ours, for tsc.
export interface Series {
  label?: string;
  stroke?: string | (() => string);
  width?: number;
  spanGaps?: boolean;
  points?: { size?: number; show?: (plot: uPlot) => boolean };
  fill?: string | (() => string);
  value?: (plot: uPlot, value: number | null) => string;
}
export interface Options {
  width: number;
  height: number;
  series: Series[];
  axes?: object[];
  scales?: object;
  cursor?: object;
  legend?: object;
}
export default class uPlot {
  constructor(options: Options, data: (number | null)[][], target: HTMLElement);
  data: (number | null)[][];
  setData(data: (number | null)[][]): void;
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
}

// Types of what the page uses of preact.js; ours, and not sent to browsers' engines: tsc reads them.
export interface VNode {
  readonly type: unknown;
}
export type Child = VNode | Child[] | string | number | boolean | null | undefined;
export type Ref<T> = { current: T };
export type Setter<T> = (next: T | ((before: T) => T)) => void;
export function html(strings: TemplateStringsArray, ...values: unknown[]): VNode;
export function render(tree: VNode | null, parent: Element): void;
export function useState<T>(first: T | (() => T)): [T, Setter<T>];
export function useReducer<S, A>(reducer: (state: S, action: A) => S, first: S): [S, (action: A) => void];
export function useEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useLayoutEffect(effect: () => void | (() => void), inputs?: readonly unknown[]): void;
export function useRef<T>(first: T): Ref<T>;
export function useMemo<T>(make: () => T, inputs: readonly unknown[]): T;
export function useCallback<T>(call: T, inputs: readonly unknown[]): T;

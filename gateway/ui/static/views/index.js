/** The views, in the order of the navigation. The first one is where the page begins. */
import { Agents } from './agents.js';
import { Models } from './models.js';
import { Overview } from './overview.js';
import { Talk } from './talk.js';
import { Workflows } from './workflows.js';

/** @typedef {{name: string, title: string, View: (props: {place: import('../routing.js').Place}) => unknown}} View */

/** @type {View[]} */
export const VIEWS = [
  { name: 'talk', title: 'Talk', View: Talk },
  { name: 'agents', title: 'Agents', View: Agents },
  { name: 'models', title: 'Models', View: Models },
  { name: 'workflows', title: 'Workflows', View: Workflows },
  { name: 'overview', title: 'Overview', View: Overview },
];

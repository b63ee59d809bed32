// The entry of a static copy: its source of answers first, then the pages.
import "./static_source.js";
import { start } from "./app.js";

start();

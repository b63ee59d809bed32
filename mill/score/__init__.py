"""From responses to scores: samples scored and judged, metrics of tasks and benchmarks. Imports plan and store."""

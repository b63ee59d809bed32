#!/usr/bin/env bash
# Compares one model at several precisions with float32 and writes one page for all of it: results/report.html.
#
#   ./sweep.sh [MODEL [TASK]]
#
# Without arguments it takes the small image-text model that is part of mill; install the extra `clip`.
set -euo pipefail

model=${1:-$(python -c 'import mill; print(mill.__path__[0])')/models/configs/clip/shapes.py}
task=${2:-shapes}

mill sweep --models "f32=${model}[dtype=float32],bf16=${model}[dtype=bfloat16],f16=${model}[dtype=float16]" \
  --baseline f32 --tasks "$task" --limit 32 --output_dir results
mill report results

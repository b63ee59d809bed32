"""Long texts that are used several times in a row, such as images in base64."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable


class TextCache:
    """The texts that were used last, at most `size` characters of them. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[], str]) -> str:
        with self._lock:
            if key in self._texts:
                self._texts.move_to_end(key)
                return self._texts[key]
        text = make()  # without the lock: encoding takes long
        with self._lock:
            if self._texts.setdefault(key, text) is text:
                self._free -= len(text)
            while self._free < 0:
                self._free += len(self._texts.popitem(last=False)[1])
        return text

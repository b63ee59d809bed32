"""Images, video and audio: decoding, prefetching, and the base of vision backends."""
